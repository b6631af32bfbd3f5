"""Counts the instructions of each stage of a search, by valgrind."""
