"""Building and searching dense indexes with Faiss."""
