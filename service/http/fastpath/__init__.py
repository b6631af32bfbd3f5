"""A shorter way for plain searches."""
