"""Where a leg is searched."""
