"""The online search service: no model, no torch, only tables and indexes that a bundle holds."""
