"""The arithmetic of a query that has no time for many small steps, in C++ (artifacts/cpp).

All arrays are C arrays of exactly the types named here, but for those of `align`: another type is a TypeError, and
shapes or values that don't fit are a ValueError. Sums are taken in an order that depends on nothing but the numbers.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

FLOOR: Final[float]
"""What the lowest known score of a leg becomes in "range" normalisation."""

class Impacts:
    """The posting lists of N documents in a file as Java's PlainImpacts writes it. ValueError where it is damaged.

    Other threads run while they are read."""

    def __init__(self, file: npt.NDArray[np.uint8], documents: int) -> None: ...
    def search(
        self,
        terms: npt.NDArray[np.int32],
        weights: npt.NDArray[np.float32],
        k: int,
        among: npt.NDArray[np.uint8] | None,
        asked: float,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """What `ImpactIndex.search` gives for terms (t,) and weights (t,), of the documents whose bit is set `among`
        all (b,), the lowest bit first."""

    def scores(
        self, terms: npt.NDArray[np.int32], weights: npt.NDArray[np.float32], ordinals: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float32]:
        """The scores (m,) of documents (m,), to the same bits."""

    def impacts(self, terms: npt.NDArray[np.int32], ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """The impacts (m, t) of terms (t,) in documents (m,), 0 where one lacks the term."""

    def terms(self, ordinal: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The terms of a document (n,), ascending, and their impacts (n,). All lists are asked for it."""

class ByteCodes:
    """N documents in codes (N, D), which stand for `low + step * (code + 1/2)`, both (D,)."""

    def __init__(
        self, codes: npt.NDArray[np.uint8], low: npt.NDArray[np.float32], step: npt.NDArray[np.float32]
    ) -> None: ...
    def scores(self, query: npt.NDArray[np.float32], ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Inner products (m,) of a query (D,) with documents (m,). Other threads run meanwhile if there are
        thousands."""

class Lists:
    """Inverted lists, L of them, as `artifacts.dense.list_spread` describes them: a mapping of queries (m, D), centres
    (L, m), codebooks of C product codes of 4 bits (C, 16, m / C), a `ListSpreads`, and of each list (L,) the addresses
    of its codes, in blocks, and of its documents' ordinals, int64, and their number. ValueError where these don't fit
    each other; what lies at the addresses is not checked."""

    def __init__(
        self,
        mapping: npt.NDArray[np.float32],
        centres: npt.NDArray[np.float32],
        codebooks: npt.NDArray[np.float32],
        places: npt.NDArray[np.int64],
        directions: npt.NDArray[np.int8],
        scales: npt.NDArray[np.float32],
        others: npt.NDArray[np.float32],
        codes: npt.NDArray[np.uint64],
        ordinals: npt.NDArray[np.uint64],
        sizes: npt.NDArray[np.int64],
    ) -> None: ...
    def search(
        self,
        query: npt.NDArray[np.float32],
        wanted: int,
        candidates: int,
        probes: int,
        spread: float,
        among: npt.NDArray[np.uint8] | None,
        scored: ByteCodes,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The best `wanted` documents for a query (D,), ordinals (n,) and scores (n,), by score, ties by ordinal.

        Looked into are the `probes` lists whose centres have the largest product with the query plus `spread` standard
        deviations. The best `candidates` by their codes there, and some more that are as good as the last one, are
        scored by `scored`. With `among`, found is only what has its bit in it (b,), the lowest first. Other threads run
        meanwhile."""

class Table:
    """A token table: rows (V, D), float16, float32, or int8 with scales (V,). ValueError for ids outside 0..V-1."""

    def __init__(self, rows: npt.NDArray[Any], scales: npt.NDArray[np.float32] | None) -> None: ...
    def encode(
        self, ids: list[int], idf: npt.NDArray[np.float32] | None
    ) -> tuple[
        npt.NDArray[np.int32],
        npt.NDArray[np.int64],
        npt.NDArray[np.float32],
        npt.NDArray[np.float32],
        npt.NDArray[np.float32],
        float,
    ]:
        """What `count` gives, and the `direction` of these terms by their counts."""

    def direction(
        self, terms: npt.NDArray[np.int32], factors: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], float]:
        """`sum_t factor_t E[t]` over terms (t,), divided by its length, (D,), and that length. A sum of length 0 is
        left as it is."""

    def directions(
        self, bounds: npt.NDArray[np.int64], terms: npt.NDArray[np.int32], factors: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """The `direction` of each of q queries, (q, D), and their lengths (q,); bounds (q + 1,) as `count_each` gives.
        Other threads run meanwhile."""

class Texts:
    """The texts of `count` documents in a file as Java's PlainDocuments writes it. ValueError where it is damaged."""

    def __init__(self, file: npt.NDArray[np.uint8], count: int) -> None: ...
    def read(self, ordinals: npt.NDArray[np.int64]) -> list[bytes]:
        """The texts of documents (m,), UTF-8. Other threads run meanwhile."""

class Words:
    """The ids of texts, put together from those of their words, which are remembered: up to `most` words, and as many
    that were met before these. `encode` gives the ids of a word, with the space before it where there is one.
    """

    def __init__(self, encode: Callable[[str], list[int]], taken: bytes, most: int) -> None: ...
    def ids(self, text: str) -> list[int] | None:
        """The ids of a text; None unless it is made of words of characters `taken` (Latin-1), a space apart, none of
        them long. Raises what `encode` raises."""

def count(
    ids: list[int], idf: npt.NDArray[np.float32] | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The different ids (t,), ascending, how often each occurs (t,), the same as float32, and times its IDF (V,)."""

def count_each(
    ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Of q queries, whose ids (n,) stand one behind the other, so many (q,) of each: the bounds (q + 1,) of each one's
    different ids, these ids (t,), ascending, and how often each occurs (t,)."""

def magnitude(numbers: npt.NDArray[np.float32]) -> float:
    """The sum of the numbers' absolute values, which is not finite if one of them isn't."""

def extremes(numbers: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> tuple[int, int]:
    """The least and the largest of the numbers, without NumPy's microseconds for each. ValueError if there is none."""

def best_first(
    ordinals: npt.NDArray[np.int64], scores: npt.NDArray[np.float32], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The best `count` of documents (m,) with their scores (m,), by score, ties by ordinal."""

def align(
    legs: Sequence[tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.floating[Any]]]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The parts of a `service.search.fusion.CandidateTable`: ordinals (u,), scores (legs, u), ranks (legs, u)."""

def unknown(ordinals: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Those of the documents (u,) whose score (u,) is NaN."""

def fill(scores: npt.NDArray[np.float64], numbers: npt.NDArray[np.floating[Any]]) -> bool:
    """Put numbers (m,), of any floating type, in the places of the m scores that are NaN, in their order. False, and
    nothing is changed, if one is not finite."""

def fuse(
    scores: npt.NDArray[np.float64],
    ranks: npt.NDArray[np.int64],
    weights: Sequence[float],
    by: Literal["range", "paper", "rank"],
    constant: float,
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The parts of a `service.search.fusion.Fused`: order (m,), shares (legs, u), scores (u,). The weights are not checked."""
