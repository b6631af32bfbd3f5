"""Near-duplicate queries by SimHash: similar texts get 64-bit hashes that differ in few bits.

    bit_b(text) = 1 if sum over features f of (±1 by bit b of hash(f)) > 0

The features are the pairs and triples of neighbouring characters (spaces included), as often as they come, after the
query was lowercased and freed of punctuation, of English function words, and of the plural s. Characters are coarse on
purpose: a query has some ten words, and with whole words or shingles of words nothing but an exact repetition would
come within 3 bits. Unrelated queries are far away: 30 bits in the median.

Within 3 bits come, always: other case, spacing, or punctuation between words; added, dropped or changed function words,
so that a question which differs in its "who" or "when" alone is taken for the same. Mostly: plurals, and two words that
change places. Often: one changed word among seventy. Seldom: one changed or dropped content word in a query of ten
words, which is some 9 bits away.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["content", "nearest", "simhash"]

Hashes = npt.NDArray[np.uint64]

_ENGLISH: Final = (
    "a an and are as at be by can could did do does for from had has have he her his how i in is it its of on or s "
    "shall should t that the their there these they this to was we were what when where which who whom whose why "
    "will with would you"
)
_FUNCTION_WORDS: Final = frozenset(_ENGLISH.split())
_BATCH: Final = 2048
_COMPARED: Final = 1 << 22  # pairs at once, in some 40 MiB


def content(text: str) -> str:
    """What of a text its hash depends on: the words that carry meaning, in one spelling, joined by spaces."""
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    kept = [word for word in words if word not in _FUNCTION_WORDS] or words
    return " ".join(map(_singular, kept)) or " ".join(text.split())


def simhash(texts: Sequence[str]) -> Hashes:
    """The hash of every text, (n,) uint64. The same on every machine and in every run."""
    hashes = [_batch(texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)]
    return np.concatenate(hashes) if hashes else np.empty(0, np.uint64)


def nearest(hashes: Hashes, references: Hashes, distance: int) -> npt.NDArray[np.int64]:
    """For each of `hashes` (n,) the index of the nearest of `references` (m,) within `distance` bits, else -1: (n,).

    Of equally near ones it is the first. All are compared with all. Raises ValueError for a distance outside 0..63.
    """
    if not 0 <= distance <= 63:
        raise ValueError(f"distance is {distance}; it must be 0 to 63 bits.")
    found = np.full(len(hashes), -1, np.int64)
    rows = max(1, _COMPARED // max(1, len(references)))
    for start in range(0, len(hashes) if len(references) else 0, rows):
        bits = np.bitwise_count(hashes[start : start + rows, None] ^ references)
        places = bits.argmin(axis=1)
        near = np.take_along_axis(bits, places[:, None], axis=1)[:, 0] <= distance
        found[start : start + rows] = np.where(near, places, -1)
    return found


def _batch(texts: Sequence[str]) -> Hashes:
    grams = [_grams(text) for text in texts]
    counts = np.array([len(line) for line in grams])
    bits = np.unpackbits(_mixed(np.concatenate(grams)).astype("<u8").view(np.uint8).reshape(-1, 8), axis=1)
    ones = np.add.reduceat(bits, np.cumsum(counts) - counts, axis=0, dtype=np.int64)
    return np.packbits(2 * ones > counts[:, None], axis=1).view("<u8").reshape(-1).astype(np.uint64)


def _grams(text: str) -> Hashes:
    """Pairs and triples of characters, packed as numbers, (g,) uint64. A code point has 21 bits."""
    points = np.frombuffer(f" {content(text)} ".encode("utf-32-le"), "<u4").astype(np.uint64)
    pairs = (points[:-1] << np.uint64(21)) | points[1:]
    triples = (pairs[:-1] << np.uint64(21)) | points[2:]
    return np.concatenate([pairs, triples])


def _mixed(values: Hashes) -> Hashes:
    """Spread numbers over all 64 bits, one to one, with the finaliser of SplitMix64; sums wrap around."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word[-1] == "s" and word[-2] != "s" else word
