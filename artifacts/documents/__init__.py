"""Documents: what may be in one, its text, and its declared fields."""
