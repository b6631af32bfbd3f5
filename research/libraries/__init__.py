"""Compares the two legs with other libraries, over the same impacts, vectors and queries."""
