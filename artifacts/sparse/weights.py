"""What all sparse searches share: the weights of a query, and the scores that they give."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.dtypes import Float32Array, FloatArray, Int32Array, IntegerArray

_MAX_SCORE: Final = float(np.finfo(np.float32).max)


def weighted_query(terms: Sequence[str], weights: FloatArray) -> tuple[list[str], Float32Array]:
    """The different terms (u,) of a query (t,), and the sums (u,) float32 of their weights, none 0; see `weighted_ids`.

    Raises ValueError for weights that are not one for each term, as `weighted_ids` does for others.
    """
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(term, len(numbers)) for term in terms], np.int32)
    kept, sums = weighted_ids(ids, weights)
    names = list(numbers)
    return [names[number] for number in kept.tolist()], sums


def weighted_ids(terms: IntegerArray, weights: FloatArray) -> tuple[Int32Array, Float32Array]:
    """The different terms (u,) int32 of a query (t,), ascending, and the sums (u,) float32 of their weights, none 0.

    Weights are cut to multiples of a power of two, so that sums in double of the products of weight and impact are
    exact in any order: u products of a weight below 2^e with an impact below 2^16 add up to less than 2^(e + 16 + b),
    where u <= 2^b, and a double has 53 bits. A weight of at least 2^(b - 13) of the largest one keeps all of its bits.
    Raises ValueError for weights that are no floats, negative, not finite, or too large for a float32 score.
    """
    if weights.shape != terms.shape or weights.dtype.kind != "f":
        raise ValueError(
            f"weights must be floats of the terms' shape {terms.shape}; got {weights.dtype} of shape {weights.shape}."
        )
    total = weights.sum(dtype=np.float64)
    if not (weights.min(initial=0.0) >= 0 and total * MAX_IMPACT < _MAX_SCORE):  # a not-a-number fails this, too
        message = "weights must be finite, not negative, and small enough for a float32 score"
        raise ValueError(f"{message}; they are from {weights.min()} to {weights.max()}.")
    ids, places = np.unique(terms, return_inverse=True)
    sums = np.bincount(places, weights, len(ids)).astype(np.float32).astype(np.float64)
    exponent = math.frexp(float(sums.max(initial=0.0)))[1]
    bits = max(0, int(np.count_nonzero(sums)) - 1).bit_length()
    unit = math.ldexp(1.0, exponent + 16 + bits - 53)
    cut = (np.trunc(sums / unit) * unit).astype(np.float32)
    kept = cut != 0
    return ids[kept].astype(np.int32), cut[kept]


def scores_of(shares: Float32Array) -> Float32Array:
    """The scores (m,) float32 of documents by the products (m, t) float32 of weight and impact of a query's terms: the
    bits that `ImpactIndex.scores` gives, if the weights are those of `weighted_ids`."""
    scores: Float32Array = shares.sum(axis=1, dtype=np.float64).astype(np.float32)
    return scores
