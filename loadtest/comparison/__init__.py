"""Compares systems under load: their definitions, their processes, and runs in turn."""
