"""Lucene through the Anserini jar that pyserini ships: the impact index, its search, and BM25 for evaluation."""
