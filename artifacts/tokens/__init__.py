"""The query side of a bundle: tokenizer, token tables, IDF weights."""
