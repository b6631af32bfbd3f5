"""Threads and memory of a process that searches."""
