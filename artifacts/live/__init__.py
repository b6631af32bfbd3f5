"""Documents that are written and deleted while a bundle is searched."""
