"""Building and searching sparse indexes with Lucene."""
