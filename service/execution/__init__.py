"""Threads of a serving process, and files that it reads again."""
