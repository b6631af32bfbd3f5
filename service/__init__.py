"""The online search service: no model, no torch, only a bundle's tables and indexes."""
