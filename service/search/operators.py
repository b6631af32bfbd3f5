"""Operators in a query: a "phrase in quotes" that documents must have, and -word, which they must not have.

A quote begins a phrase at the beginning of a word, so that 3.5" is a size. Exclusions are up to eight words of three
characters or more at the end of a query, behind what is looked for. A query with any other - at the beginning of a word
is text as it stands, as a command line has: tar -xzf archive.tar, ls -l, gcc -std=c99 -pedantic.
"""

import re
from typing import Final, NamedTuple

__all__ = ["Operators", "literal", "outside_quotes", "read_operators"]

_PHRASE: Final = re.compile(r"(?<!\S)[\"“„](?=\S)([^\"“”„]+)[\"“”](?!\w)")
_EXCLUSION: Final = re.compile(r"-([^\W\d_]{2}[^\s=/:\"“”]+)")
_WITH_EXCLUSIONS: Final = re.compile(rf"(\s*(?>(?!-\S)\S+\s+)+)((?>{_EXCLUSION.pattern}(?!\S)\s*){{1,8}})")


class Operators(NamedTuple):
    """A query in parts: the text to look for, its phrases with their quotes among it, the words of `-word`, and the
    phrases, each once."""

    text: str
    excluded: list[str]
    phrases: list[str]


def read_operators(query: str) -> Operators:
    """Return a query in parts."""
    text, exclusions = query, ""
    if (parts := _WITH_EXCLUSIONS.fullmatch(query)) and any(map(str.isalnum, parts[1])):
        text, exclusions = parts[1].rstrip(), parts[2]
    excluded, phrases = (list(dict.fromkeys(one)) for one in (_EXCLUSION.findall(exclusions), _PHRASE.findall(text)))
    return Operators(text, excluded, phrases)


def literal(text: str) -> str:
    """Return a text as a query without operators: with a blank behind their first characters."""
    parts = read_operators(text)
    words = _PHRASE.sub(lambda phrase: f"{phrase[0][0]} {phrase[0][1:]}", parts.text)
    return " - ".join([words, *parts.excluded])


def outside_quotes(query: str) -> str:
    """Return a query with blanks in the places of its phrases."""
    return _PHRASE.sub(lambda phrase: " " * len(phrase[0]), query)
