"""Checks of the arguments that all searches of impacts share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts import kernels
from lightretriever.artifacts.corpus.bounds import MAX_IMPACT

__all__ = ["check_integers", "check_k", "check_ordinals", "scores_of", "weighted_ids", "weighted_query"]

_MAX_TERM: Final = int(np.iinfo(np.int32).max)
_MAX_SCORE: Final = float(np.finfo(np.float32).max)


def weighted_query(
    terms: Sequence[str], weights: npt.NDArray[np.floating[Any]]
) -> tuple[list[str], npt.NDArray[np.float32]]:
    """The different terms (u,) of a query (t,), and the sums (u,) float32 of their weights, none 0; see `weighted_ids`.

    Raises ValueError for weights that are not one for each term, as `weighted_ids` does for others.
    """
    places: dict[str, int] = {}
    ids = np.array([places.setdefault(term, len(places)) for term in terms], np.int32)
    kept, sums = weighted_ids(ids, weights)
    names = list(places)
    return [names[place] for place in kept.tolist()], sums


def weighted_ids(
    terms: npt.NDArray[np.integer[Any]], weights: npt.NDArray[np.floating[Any]]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """The different terms (u,) int32 of a query (t,), ascending, and the sums (u,) float32 of their weights, none 0.

    Weights are cut to multiples of a power of two, so that sums in double of the products of weight and impact are
    exact in any order, see `kernels.weighted_terms`. Raises ValueError for terms that are no integers from 0 to
    2^31 - 1, and for weights that are no floats, not finite, or too large for a float32 score.
    """
    _check_terms(terms)
    if weights.shape != terms.shape or weights.dtype.kind != "f":
        raise ValueError(
            f"weights must be floats of the terms' shape {terms.shape}; got {weights.dtype} of shape {weights.shape}."
        )
    narrow = weights.dtype == np.float32
    total = kernels.magnitude(np.ascontiguousarray(weights)) if narrow else float(np.abs(weights).sum(dtype=np.float64))
    if not total * MAX_IMPACT < _MAX_SCORE:  # a not-a-number fails this, too
        worst = weights[np.abs(weights).argmax()]
        raise ValueError(f"weights must be finite, and small enough for a float32 score; the largest is {worst}.")
    return kernels.weighted_terms(np.ascontiguousarray(terms, np.int32), np.ascontiguousarray(weights, np.float32))


def scores_of(shares: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The scores (m,) float32 of documents by the products (m, t) float32 of weight and impact of a query's terms: the
    bits that `ImpactIndex.scores` gives, if the weights are those of `weighted_ids`."""
    added = np.maximum(shares, 0).sum(axis=1, dtype=np.float64).astype(np.float32)
    subtracted = np.maximum(-shares, 0).sum(axis=1, dtype=np.float64).astype(np.float32)
    scores: npt.NDArray[np.float32] = added - subtracted
    return scores


def check_k(k: int) -> None:
    """Raise ValueError unless k is 1 or more."""
    if k < 1:
        raise ValueError(f"k is {k}; it must be 1 or more.")


def _check_terms(terms: npt.NDArray[Any]) -> None:
    """Raise ValueError unless terms are integers of shape (t,) from 0 to 2^31 - 1."""
    check_integers("terms", terms)
    if len(terms) == 0:
        return
    least, most = _extremes(terms)
    if least < 0 or most > _MAX_TERM:
        raise ValueError(f"terms must be 0 to {_MAX_TERM}; got {least} to {most}.")


def check_ordinals(ordinals: npt.NDArray[np.integer[Any]], count: int, path: Path) -> None:
    """Raise ValueError unless ordinals are integers of shape (m,) below the `count` of documents in `path`."""
    check_integers("ordinals", ordinals)
    if len(ordinals) == 0:
        return
    least, largest = _extremes(ordinals)
    if least < 0 or largest >= count:
        raise ValueError(f"ordinals must be 0 to {count - 1} in {path}; got {least} to {largest}.")


def check_integers(name: str, values: npt.NDArray[Any]) -> None:
    """Raise ValueError unless values are integers of shape (n,)."""
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers of shape (n,); got {values.dtype} of shape {values.shape}.")


def _extremes(values: npt.NDArray[Any]) -> tuple[int, int]:
    if values.dtype in (np.int32, np.int64) and values.flags.c_contiguous:
        return kernels.extremes(values)
    return int(values.min()), int(values.max())
