"""The patterns of words: letters, digits and underscores, with the combining marks that follow them. Names such as c++,
c# and .net keep their signs.

Python's `\\w` excludes combining marks, and would split words of Hindi or Thai, and decomposed accents, at each. Atomic
groups stand where possessive quantifiers would be shorter: those fail over alternatives before Python 3.11.5.
"""

import re
import unicodedata
from collections.abc import Iterable
from itertools import chain
from typing import Final

__all__ = ["HYPHENED", "SIGN", "STOP_WORDS", "UNSPACED", "WORD"]


def _marks(places: Iterable[int]) -> str:
    """Give the combining marks among these code points, as ranges of a regular expression."""
    ranges: list[list[int]] = []
    for place in places:
        character = chr(place)
        # The first two conditions are for speed; every mark satisfies them.
        if character.isprintable() and not character.isalnum() and unicodedata.category(character)[0] == "M":
            if ranges and ranges[-1][1] == place - 1:
                ranges[-1][1] = place
            else:
                ranges.append([place, place])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


# Without ideographs, Hangul and private use, which fill most of the plane and have no marks.
_BASIC: Final = _marks(chain(range(0x300, 0x3400), range(0xA000, 0xAC00), range(0xFB00, 0x10000)))
_FURTHER: Final = _marks(range(0x10000, 0x20000))
# `re` compiles the first class to a table and the second to a list; the lookahead limits the scan to few characters.
_MARK: Final = rf"(?:[{_BASIC}\u200c\u200d]|(?=[\U00010000-\U0001ffff])[{_FURTHER}])"

# Chinese and Japanese have no spaces between words, so each character is a word.
_ALONE: Final = "\u3040-\u3098\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

WORD: Final = re.compile(
    rf"[{_ALONE}](?>{_MARK}*)|(?:(?<!\S)\.(?=[^\W\d_]{{2}}))?(?>(?:[^\W{_ALONE}]++(?>{_MARK}*))+)(?:\+\+(?![\w+])|\#(?![\w#]))?"
)
"""A word. A run of Thai, Lao, Khmer or Burmese, which have no spaces between words either, is one; see `UNSPACED`."""

_PART: Final = rf"(?>(?:[^\W_{_ALONE}](?>{_MARK}*)){{1,20}})"

HYPHENED: Final = re.compile(rf"(?<!\w)((?=[^\W\d_]){_PART})[-\u2010\u2011](?=({_PART})(?!\w))")
"""Two parts with a hyphen between them, such as wi-fi, which are also a word together. Matches end at the hyphen."""

_SIGN: Final = (
    rf"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf](?>{_MARK}*)"
)

SIGN: Final = re.compile(_SIGN)
"""A letter of Thai, Lao, Khmer, Burmese and their neighbours, with its marks."""

UNSPACED: Final = re.compile(rf"(?>(?:{_SIGN})+)")
"""A run of such signs."""

_ENGLISH: Final = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with"
)
STOP_WORDS: Final = frozenset(_ENGLISH.split())
"""Lucene's English stop words, which its analyzer leaves out."""
