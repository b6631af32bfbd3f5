"""Documents: their bounds, their text, their declared fields."""
