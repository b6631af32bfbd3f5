"""What goes wrong when an array is read from a file."""

from tokenize import TokenError
from typing import Final

__all__ = ["UNREADABLE"]

UNREADABLE: Final = (OSError, EOFError, ValueError, SyntaxError, TokenError)
"""What `numpy.load` raises for a file that is no whole array. It parses the header as Python, hence the last two."""
