"""Training: from a language model and pairs of queries and documents to a LoRA adapter made for retrieval."""
