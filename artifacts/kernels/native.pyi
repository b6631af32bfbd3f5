"""The arithmetic of a query that no library has, in C++ (artifacts/kernels/cpp).

Arrays are C arrays of exactly the types named here, except those of `align`. Another type raises TypeError; shapes or
values that don't fit raise ValueError. Sums are taken in an order that depends on nothing but the numbers, so results
are the same bits on every processor.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

FLOOR: Final[float]
"""What the lowest known score of a leg becomes in "range" normalisation."""

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
        """What `count` returns for the ids, followed by the `direction` of these terms weighted by their counts."""

    def direction(
        self, terms: npt.NDArray[np.int32], factors: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], float]:
        """`sum_t factor_t E[t]` over terms (t,), divided by its Euclidean norm, (D,), and that norm. A sum of norm 0
        is returned as it is."""

    def directions(
        self, bounds: npt.NDArray[np.int64], terms: npt.NDArray[np.int32], factors: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
        """The `direction` of each of q queries, (q, D), and the norms (q,), with bounds (q + 1,) as `count_each`
        returns them. Releases the GIL."""

def weighted_terms(
    terms: npt.NDArray[np.int32], weights: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The different terms (u,) of a query (t,), ascending, with the sums (u,) of their finite weights (t,), none 0.

    Weights are cut to multiples of a power of two, so that sums in double of the products of weight and impact are
    exact in any order. With u <= 2^b, a weight of at least 2^(b - 13) of the largest one keeps all of its bits."""

def count(
    ids: list[int], idf: npt.NDArray[np.float32] | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The distinct ids (t,), ascending; the count of each (t,); the counts as float32 (t,); and the counts times IDF
    (t,), with `idf` (V,), or the counts again without."""

def count_each(
    ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Count the ids of q queries, which stand one query after the other in `ids` (n,), `lengths` (q,) of each.

    Returns bounds (q + 1,), the distinct ids (t,) and the count of each (t,): those of query i, ascending by id, stand
    from bounds[i] to bounds[i + 1]."""

def magnitude(numbers: npt.NDArray[np.float32]) -> float:
    """The sum of the absolute values of numbers (n,). It is not finite if one of them isn't."""

def extremes(numbers: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> tuple[int, int]:
    """The smallest and the largest of numbers (n,), several times as fast as NumPy. ValueError if n is 0."""

def best_first(
    ordinals: npt.NDArray[np.int64], scores: npt.NDArray[np.float32], count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """The best `count` of documents (m,) and their scores, by score, ties by ordinal. ValueError for a NaN score."""

def align(
    legs: Sequence[tuple[npt.NDArray[np.integer[Any]], npt.NDArray[np.floating[Any]]]],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """The parts of a `service.search.fusion.CandidateTable`: ordinals (u,), scores (legs, u), ranks (legs, u)."""

def unknown(ordinals: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The documents, of ordinals (u,), whose score (u,) is NaN."""

def fill(scores: npt.NDArray[np.float64], numbers: npt.NDArray[np.floating[Any]]) -> bool:
    """Write numbers (m,), of any floating type, over the m scores that are NaN, in order. Returns False and changes
    nothing if a number is not finite."""

def fuse(
    scores: npt.NDArray[np.float64],
    ranks: npt.NDArray[np.int64],
    weights: Sequence[float],
    by: Literal["range", "zscore", "dbsf", "paper", "rank"],
    constant: float,
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The parts of a `service.search.fusion.Fused`: order (m,), shares (legs, u), scores (u,). Doesn't check
    weights."""
