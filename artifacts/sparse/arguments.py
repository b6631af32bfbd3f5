"""What all searches share: the weights of a query and its scores; and a check of the impacts that are written."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.dtypes import Float32Array, FloatArray, Int32Array, IntegerArray

__all__ = ["check_rows", "scores_of", "weighted_ids", "weighted_query"]

_MAX_SCORE: Final = float(np.finfo(np.float32).max)


def weighted_query(terms: Sequence[str], weights: FloatArray) -> tuple[list[str], Float32Array]:
    """The different terms (u,) of a query (t,), and the sums (u,) float32 of their weights, none 0; see `weighted_ids`.

    Raises ValueError for weights that are not one for each term, as `weighted_ids` does for others.
    """
    places: dict[str, int] = {}
    ids = np.array([places.setdefault(term, len(places)) for term in terms], np.int32)
    kept, sums = weighted_ids(ids, weights)
    names = list(places)
    return [names[place] for place in kept.tolist()], sums


def weighted_ids(terms: IntegerArray, weights: FloatArray) -> tuple[Int32Array, Float32Array]:
    """The different terms (u,) int32 of a query (t,), ascending, and the sums (u,) float32 of their weights, none 0.

    Weights are cut to multiples of a power of two, so that sums in double of the products of weight and impact are
    exact in any order: u products of a weight below 2^e with an impact below 2^16 add up to less than 2^(e + 16 + b),
    where u <= 2^b, and a double has 53 bits. A weight of at least 2^(b - 13) of the largest one keeps all of its bits.
    Raises ValueError for weights that are no floats, not finite, or too large for a float32 score.
    """
    if weights.shape != terms.shape or weights.dtype.kind != "f":
        raise ValueError(
            f"weights must be floats of the terms' shape {terms.shape}; got {weights.dtype} of shape {weights.shape}."
        )
    if not np.abs(weights).sum(dtype=np.float64) * MAX_IMPACT < _MAX_SCORE:  # a not-a-number fails this, too
        worst = weights[np.abs(weights).argmax()]
        raise ValueError(f"weights must be finite, and small enough for a float32 score; the largest is {worst}.")
    ids, places = np.unique(terms, return_inverse=True)
    sums = np.bincount(places, weights, len(ids)).astype(np.float32).astype(np.float64)
    exponent = math.frexp(float(np.abs(sums).max(initial=0.0)))[1]
    bits = max(0, int(np.count_nonzero(sums)) - 1).bit_length()
    unit = math.ldexp(1.0, exponent + 16 + bits - 53)
    cut = (np.trunc(sums / unit) * unit).astype(np.float32)
    kept = cut != 0
    return ids[kept].astype(np.int32), cut[kept]


def scores_of(shares: Float32Array) -> Float32Array:
    """The scores (m,) float32 of documents by the products (m, t) float32 of weight and impact of a query's terms: the
    bits that `ImpactIndex.scores` gives, if the weights are those of `weighted_ids`."""
    if shares.min(initial=0.0) >= 0:
        total: Float32Array = shares.sum(axis=1, dtype=np.float64).astype(np.float32)
        return total
    added = np.maximum(shares, 0).sum(axis=1, dtype=np.float64).astype(np.float32)
    subtracted = np.maximum(-shares, 0).sum(axis=1, dtype=np.float64).astype(np.float32)
    scores: Float32Array = added - subtracted
    return scores


def check_rows(
    ids: Sequence[str], indptr: IntegerArray, terms: IntegerArray, impacts: IntegerArray, *, vocab_size: int
) -> None:
    """Raise ValueError, which names the document, unless these are the terms and impacts of n documents in CSR form:
    `indptr` (n + 1,) rises from 0 to nnz, `terms` (nnz,) are below `vocab_size`, none twice in a document, and
    `impacts` (nnz,) 1 to 65,535."""
    lengths = indptr[1:].astype(np.int64) - indptr[:-1].astype(np.int64)
    rises = len(indptr) == len(ids) + 1 and indptr[0] == 0 and not (lengths < 0).any()
    if not rises or not indptr[-1] == len(terms) == len(impacts):
        raise ValueError(
            f"indptr must be {len(ids) + 1} numbers that rise from 0 to the number of terms and impacts; "
            f"it is {indptr}, with {len(terms)} terms and {len(impacts)} impacts"
        )
    rows = np.repeat(np.arange(len(ids)), lengths)
    for name, values, least, most in (("term", terms, 0, vocab_size - 1), ("impact", impacts, 1, MAX_IMPACT)):
        outside = np.flatnonzero((values < least) | (values > most))
        if len(outside):
            first = outside[0]
            raise ValueError(f'document "{ids[rows[first]]}": {name} {values[first]} is outside {least}..{most}')
    if ((np.diff(terms.astype(np.int64)) > 0) | (np.diff(rows) > 0)).all():
        return
    order = np.lexsort((terms, rows))
    twice = np.flatnonzero((np.diff(terms[order]) == 0) & (np.diff(rows[order]) == 0))
    if len(twice):
        first = order[twice[0]]
        raise ValueError(f'document "{ids[rows[first]]}": term {terms[first]} occurs twice')
