"""Measures the speed of the service, and its growth; makes corpora of any size for it."""
