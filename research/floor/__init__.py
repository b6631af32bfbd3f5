"""What a search costs: our own calls in it, and the least that the same readers need."""
