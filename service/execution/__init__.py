"""Threads and memory of a serving process."""
