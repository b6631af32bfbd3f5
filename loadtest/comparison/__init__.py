"""Comparing systems under load: what each is, its process, and runs in turn."""
