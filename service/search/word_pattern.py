"""What a word of a text is: letters, digits and underscores, with the combining marks that follow them.

Python's `\\w` leaves out combining marks, and would end a word of Hindi or Thai, or one with accents apart, at each.
"""

import re
import unicodedata
from collections.abc import Iterable
from itertools import chain
from typing import Final

__all__ = ["WORD"]


def _marks(places: Iterable[int]) -> str:
    """The combining marks at these places of Unicode, as ranges of a regular expression."""
    ranges: list[list[int]] = []
    for place in places:
        character = chr(place)
        # The first two conditions are for speed: they hold for every mark.
        if character.isprintable() and not character.isalnum() and unicodedata.category(character)[0] == "M":
            if ranges and ranges[-1][1] == place - 1:
                ranges[-1][1] = place
            else:
                ranges.append([place, place])
    return "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges)


# Without ideographs, Hangul and private use, which are most of the plane and have no marks.
_BASIC: Final = _marks(chain(range(0x300, 0x3400), range(0xA000, 0xAC00), range(0xFB00, 0x10000)))
_FURTHER: Final = _marks(range(0x10000, 0x20000))
# Two classes: the first one is a table, the second one a list, which is to be gone through for few characters.
_MARK: Final = rf"(?:[{_BASIC}\u200c\u200d]|(?=[\U00010000-\U0001ffff])[{_FURTHER}])"

# Chinese and Japanese put no spaces between words: there each character is a word.
_ALONE: Final = "\u3040-\u3098\u309b-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"

WORD: Final = re.compile(rf"[{_ALONE}]{_MARK}*+|(?:[^\W{_ALONE}]++{_MARK}*+)++")
