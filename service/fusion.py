"""Fusion of the dense and the sparse ranking: pure functions over arrays, no I/O.

A *leg* proposes candidates, ordinals with scores. `align` puts the candidates of all legs into one table, in which a
cell is NaN where a leg did not score a document. The caller may fill such cells with the leg's true score
(`CandidateTable.missing`, `CandidateTable.fill`): both scores are plain inner products, so this is cheap and exact.

Linear (weighted sum of normalised scores; w the weights, s_l(d) the score of document d in leg l):

    fused(d) = sum_l w_l * norm_l(s_l(d)),   norm_l(unknown) = 0

    "range"  norm_l(s) = 0.001 + 0.999 * (s - min_l) / (max_l - min_l), minimum and maximum over all known scores of the
             table; 1 where they are equal. The last candidate keeps 0.001 and a single hit gets 1: none is zeroed.
    "paper"  norm_l(s) = (s - min_l) / (max_l - min_l) over the leg's own candidates, other documents get 0; 0 where all
             are equal. The paper's own fusion, for parity in evaluation. Filled scores are not used.

Reciprocal rank fusion (ranks from 1, c the rank constant, 60 in the paper):

    fused(d) = sum_l w_l / (c + rank_l(d)),   over the legs that proposed d

The result holds the documents that a leg of weight above 0 proposed, by fused score, ties by ordinal. Where one such
leg is alone, the order is that leg's own: rounding in the normalisation can't turn two of its scores into a tie.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.schemas import Normalization

__all__ = ["FLOOR", "CandidateTable", "Fused", "align", "fuse_linear", "fuse_rrf"]

Ordinals = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

FLOOR = 0.001
"""What the lowest known score of a leg becomes in "range" normalisation."""

# ranx and the official code divide by at least this, so that a leg whose scores are all equal becomes zeros.
_SMALLEST_RANGE = 1e-9


@dataclass(slots=True)
class CandidateTable:
    """The candidates of all legs side by side; u documents, one row per leg.

    ordinals: (u,) int64, ascending. scores: (legs, u) float64, NaN where unknown.
    ranks: (legs, u) int64, rank among the leg's own candidates from 1, 0 where the leg didn't propose the document.
    """

    ordinals: Ordinals
    scores: Scores
    ranks: npt.NDArray[np.int64]

    def missing(self, leg: int) -> Ordinals:
        """Give the ordinals (m,) int64 whose score in row `leg` is unknown, ascending."""
        missing: Ordinals = self.ordinals[np.isnan(self.scores[leg])]
        return missing

    def fill(self, leg: int, scores: npt.NDArray[np.floating]) -> None:
        """Set the unknown scores of row `leg`: (m,) in the order of `missing(leg)`; ValueError if not finite."""
        if not np.isfinite(scores).all():
            raise ValueError(f"leg {leg} gave scores that are not finite numbers: {scores[~np.isfinite(scores)][:3]}")
        self.scores[leg, np.isnan(self.scores[leg])] = scores


@dataclass(frozen=True, slots=True)
class Fused:
    """A fused ranking. order: (m,) columns of the table, best first, m <= u; shares: (legs, u) float64, what each leg
    adds to the score of each column; scores: (u,) float64, the sums."""

    order: npt.NDArray[np.intp]
    shares: Scores
    scores: Scores


def align(legs: Sequence[tuple[Ordinals, npt.NDArray[np.floating]]]) -> CandidateTable:
    """Put the candidates of `legs`, pairs of ordinals (m,) int64 and scores (m,), into one table.

    The order in which a leg lists its candidates doesn't matter: ranks follow the score, ties the ordinal.
    ValueError if a leg's two arrays differ in length, a score is not finite, or an ordinal comes twice in a leg.
    """
    ordinals = _union([leg[0] for leg in legs])
    scores = np.full((len(legs), len(ordinals)), np.nan)
    ranks = np.zeros((len(legs), len(ordinals)), np.int64)
    for row, (leg_ordinals, leg_scores) in enumerate(legs):
        if leg_ordinals.shape != leg_scores.shape:
            raise ValueError(f"leg {row} has {leg_ordinals.size} ordinals, but {leg_scores.size} scores")
        if not np.isfinite(leg_scores).all():
            raise ValueError(f"leg {row} has scores that are not finite numbers")
        columns = ordinals.searchsorted(leg_ordinals)
        scores[row, columns] = leg_scores
        if not (leg_scores[1:] < leg_scores[:-1]).all():
            columns = columns[np.lexsort((leg_ordinals, -scores[row, columns]))]
        ranks[row, columns] = np.arange(1, columns.size + 1)
        if np.count_nonzero(ranks[row]) != columns.size:
            raise ValueError(f"leg {row} has an ordinal more than once")
    return CandidateTable(ordinals, scores, ranks)


def fuse_linear(table: CandidateTable, weights: Sequence[float], normalization: Normalization = "range") -> Fused:
    """Fuse by the weighted sum of normalised scores; `weights` one per leg.

    ValueError if a weight is negative or not finite, or if all are 0.
    """
    checked = _check_weights(table, weights)
    normalised = _range_normalised(table) if normalization == "range" else _paper_normalised(table)
    return _fused(table, checked, checked[:, None] * normalised)


def fuse_rrf(table: CandidateTable, weights: Sequence[float], rank_constant: float = 60.0) -> Fused:
    """Fuse by reciprocal ranks, counted from 1; `weights` one per leg, `rank_constant` at least 0.

    ValueError if a weight or the constant is negative or not finite, or if all weights are 0.
    """
    if not (np.isfinite(rank_constant) and rank_constant >= 0):
        raise ValueError(f"the rank constant must be a number from 0 up, not {rank_constant}")
    checked = _check_weights(table, weights)
    shares = np.where(table.ranks > 0, 1.0 / (rank_constant + np.maximum(table.ranks, 1)), 0.0)
    return _fused(table, checked, checked[:, None] * shares)


def _fused(table: CandidateTable, weights: Scores, shares: Scores) -> Fused:
    scores: Scores = shares.sum(axis=0)
    return Fused(_order(table, weights, scores), shares, scores)


def _union(arrays: Sequence[Ordinals]) -> Ordinals:
    """The different ordinals, ascending; `np.unique` takes longer for a few hundred."""
    if not arrays:
        return np.empty(0, np.int64)
    ordinals = np.concatenate(arrays)
    ordinals.sort()
    fresh = np.empty(ordinals.size, np.bool_)
    fresh[:1] = True
    np.not_equal(ordinals[1:], ordinals[:-1], out=fresh[1:])
    return ordinals[fresh]


def _check_weights(table: CandidateTable, weights: Sequence[float]) -> Scores:
    checked = np.asarray(weights, np.float64)
    if checked.shape != (len(table.scores),):
        raise ValueError(f"{len(table.scores)} legs need as many weights, got {checked.size}")
    if not all(0.0 <= weight < np.inf for weight in weights) or not any(weights):
        raise ValueError(f"weights must be finite, not negative and not all 0, got {list(weights)}")
    return checked


def _range_normalised(table: CandidateTable) -> Scores:
    """The normalised scores (legs, u) of all legs, 0 where unknown."""
    if table.ordinals.size == 0:
        return table.scores
    low, spread = _extent(table.scores)
    equal = spread == 0.0
    normalised = FLOOR + (1.0 - FLOOR) * ((table.scores - low) / (spread + equal) + equal)
    return _known(normalised)


def _paper_normalised(table: CandidateTable) -> Scores:
    """The normalised scores (legs, u) of the legs' own candidates, 0 for others."""
    if table.ordinals.size == 0:
        return table.scores
    own = np.where(table.ranks > 0, table.scores, np.nan)
    low, spread = _extent(own)
    return _known((own - low) / np.maximum(spread, _SMALLEST_RANGE))


def _extent(scores: Scores) -> tuple[Scores, Scores]:
    """The lowest score of every row and the distance to its highest, (legs, 1) each; NaN for a row without scores."""
    low = np.fmin.reduce(scores, axis=1, keepdims=True)
    return low, np.fmax.reduce(scores, axis=1, keepdims=True) - low


def _known(scores: Scores) -> Scores:
    scores[np.isnan(scores)] = 0.0
    return scores


def _order(table: CandidateTable, weights: Scores, fused: Scores) -> npt.NDArray[np.intp]:
    speaking = np.flatnonzero((weights > 0) & (table.ranks > 0).any(axis=1))
    if speaking.size == 1:
        ranks = table.ranks[speaking[0]]
        return np.argsort(ranks)[np.count_nonzero(ranks == 0) :]
    order = np.argsort(-fused, kind="stable")  # the columns stand by ordinal, so ties do
    if speaking.size == len(table.ranks):
        return order  # every column is a document that one of the legs proposed
    proposed: npt.NDArray[np.bool_] = np.logical_or.reduce(table.ranks[speaking] > 0, axis=0)
    return order[proposed[order]]
