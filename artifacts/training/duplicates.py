"""Near-duplicate queries: those whose content is the same, whatever stands around and between it."""

import re
import unicodedata
from typing import Final

__all__ = ["content"]

_ENGLISH: Final = (
    "a an and are as at be by can could did do does for from had has have he her his how i in is it its of on or s "
    "shall should t that the their there these they this to was we were what when where which who whom whose why "
    "will with would you"
)
_FUNCTION_WORDS: Final = frozenset(_ENGLISH.split())


def content(text: str) -> str:
    """The words of a query that carry meaning, in alphabetical order and one spelling, joined by spaces.

    Case, punctuation, the order of words, English function words and the plural s make no difference. A query of
    function words alone keeps them, and one without words its signs.
    """
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    kept = [word for word in words if word not in _FUNCTION_WORDS] or words
    return " ".join(sorted(map(_singular, kept))) or " ".join(text.split())


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] != "s" else word
