"""Fusion of the dense and the sparse ranking: pure functions over arrays, no I/O.

A *leg* proposes candidates, ordinals with scores. `align` puts the candidates of all legs into one table, in which NaN
marks a document that a leg did not score. The caller may put the leg's true score there: both scores are plain inner
products, so this is cheap and exact.

Linear (weighted sum of normalised scores; w the weights, s_l(d) the score of document d in leg l):

    fused(d) = sum_l w_l * norm_l(s_l(d)),   norm_l(unknown) = 0

    "range"  norm_l(s) = 0.001 + 0.999 * (s - min_l) / (max_l - min_l), minimum and maximum over all known scores of the
             table; 1 if they are equal. The last candidate keeps 0.001 and a single hit gets 1: no hit drops to zero.
    "evidence" norm_l(s) = 0.001 + 0.999 * ((s - min_l) / (max_l - min_l))^2, as a leg's best documents say more than
             its others, with w_l * e_l / sum_k w_k * e_k for w_l: what the legs know of the query (`evidence`)
    "paper"  norm_l(s) = (s - min_l) / (max_l - min_l) over the leg's own candidates, other documents get 0; 0 if all
             are equal (the divisor is at least 1e-9, as in ranx and the official code). The paper's own fusion, for
             parity in evaluation. It ignores filled scores.

Feedback (of linear fusion): the query's vector q moves towards the vector v of the first document, and the dense leg
scores the same candidates, of vectors x_d, again. Only fusion sees these scores.

    q' = normalise(q + a g v / |v|),   s'(d) = q' . x_d

a is the weight of the feedback, and g the share of the query's words that the first document has (`word_share`), so a
first document that only the vectors found moves nothing.

Reciprocal rank fusion (ranks from 1, c the rank constant, 60 in the paper):

    fused(d) = sum_l w_l / (c + rank_l(d)),   over the legs that proposed d

The result holds the documents that a leg of weight above 0 proposed, by fused score, ties by ordinal. If there is only
one such leg, the order is its own: rounding in the normalisation can't turn two of its scores into a tie.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import Float32Array, Float64Array, FloatArray, Int64Array
from lightretriever.service.schemas import LegName, Normalization

BOTH: Final[Sequence[LegName]] = ("dense", "sparse")
FLOOR: Final = 0.001
"""Value of a leg's lowest known score after "range" normalisation."""

_SMALLEST_RANGE: Final = 1e-9
_HEAVIEST: Final = 4  # terms of a query, of which a document has a share; none has all terms of a long query
_DEVIATIONS: Final = 8.0  # above the corpus, of a best document that leaves no doubt


@dataclass(slots=True)
class CandidateTable:
    """The candidates of all legs; u documents, one row per leg.

    ordinals: (u,) int64, ascending. scores: (legs, u) float64, NaN if unknown.
    ranks: (legs, u) int64, rank among the leg's own candidates from 1, 0 if the leg didn't propose the document.
    legs: names of the rows.
    """

    ordinals: Int64Array
    scores: Float64Array
    ranks: Int64Array
    legs: Sequence[LegName] = BOTH

    def of(self, name: LegName) -> Float64Array:
        """Return the scores (u,) of a leg, a view."""
        scores: Float64Array = self.scores[self.legs.index(name)]
        return scores


@dataclass(frozen=True, slots=True)
class Fused:
    """A fused ranking. order: (m,) columns of the table, best first, m <= u; shares: (legs, u) float64, each leg's
    share of each column's score; scores: (u,) float64, the sums; feedback: (u,) float64, what feedback adds to the
    share of the dense leg, None without feedback."""

    order: npt.NDArray[np.intp]
    shares: Float64Array
    scores: Float64Array
    feedback: Float64Array | None = None


def align(
    legs: Sequence[tuple[Int64Array, FloatArray]], names: Sequence[LegName] = BOTH, others: Sequence[int] = ()
) -> CandidateTable:
    """Put the candidates of `legs`, pairs of ordinals (m,) int64 and scores (m,), best first, and `others`, which no
    leg needs to have proposed, into one table.

    ValueError if a leg's two arrays differ in length, a score is not finite, or a leg has an ordinal twice.
    """
    every = np.concatenate([*map(itemgetter(0), legs), np.array(others, np.int64)])
    every.sort()
    first = np.ones(every.size, np.bool_)
    np.not_equal(every[1:], every[:-1], out=first[1:])  # several times as fast as np.unique
    every = every[first]
    shape = (len(legs), every.size)
    table = CandidateTable(every, np.full(shape, np.nan), np.zeros(shape, np.int64), names)
    for leg, (ordinals, scores) in enumerate(legs):
        if ordinals.shape != scores.shape or not np.isfinite(scores).all():
            raise ValueError(f"leg {leg} needs a finite score for each of its {ordinals.size} ordinals, not {scores}")
        columns = every.searchsorted(ordinals)
        table.scores[leg, columns] = scores
        table.ranks[leg, columns] = np.arange(1, ordinals.size + 1)
        if np.count_nonzero(table.ranks[leg]) != ordinals.size:
            raise ValueError(f"leg {leg} has an ordinal more than once")
    return table


def fuse_linear(table: CandidateTable, weights: Sequence[float], normalization: Normalization = "range") -> Fused:
    """Fuse by the weighted sum of normalised scores; `weights` one per leg, not all 0."""
    values = [*map(_NORMALIZATIONS[normalization], table.scores, table.ranks)]
    return _ranked(table, weights, np.array(values) * np.array(weights)[:, None])


def evidence(
    query: Float32Array, background: Float32Array, dense: Float64Array, sparse: Float64Array, largest: Float32Array
) -> tuple[float, float]:
    """Return how much the dense and the sparse leg know of a query, about 1 where they know much, and at least FLOOR,
    so that no hit of a leg drops to zero.

    dense: (max(s) - mean(b)) / (8 std(b)), with s the leg's scores `dense` (u,) of the candidates and b those of the
    `background` (n, D) for the query's vector (D,). sparse: the best of the scores `sparse` (u,) divided by the sum of
    the four largest of `largest` (t,), the most that each term adds to the score of any candidate; at most 1.
    """
    scores = np.einsum("nd,d->n", background, query).astype(np.float64)  # `@` would start BLAS's threads
    mean = float(scores.sum()) / scores.size
    scores -= mean
    deviation, above = sqrt(float(scores @ scores) / scores.size), float(dense.max()) - mean
    return (
        max(FLOOR, above / (_DEVIATIONS * deviation)) if deviation > 0 else 1.0,
        max(FLOOR, word_share(float(sparse.max()), largest)),
    )


def word_share(score: float, largest: Float32Array) -> float:
    """Return the share of a query's words that a document of this sparse score has, 0 to 1: the score divided by the
    sum of the four largest of `largest` (t,), the most that each term adds to the score of any candidate."""
    total = sum(sorted(largest.tolist())[-_HEAVIEST:])
    return min(1.0, score / total) if total > 0 else 0.0


def moved_query(query: Float32Array, first: Float32Array, weight: float) -> Float32Array:
    """Return `normalise(query + weight * first / |first|)`, float32 (D,), of two vectors (D,); `query` where one of the
    lengths is 0."""
    with np.errstate(over="ignore", invalid="ignore"):  # a damaged vector is like none
        length = sqrt(float(first @ first))  # BLAS computes a product of two vectors in the calling thread
        moved: Float32Array = query + np.float32(weight / length if length else 0.0) * first
        length = sqrt(float(moved @ moved))
    return moved / np.float32(length) if length else query


def fuse_again(
    table: CandidateTable,
    fused: Fused,
    weights: Sequence[float],
    normalization: Normalization,
    row: int,
    scores: FloatArray,
) -> Fused:
    """Return the ranking with other scores (u,), all known, of the leg in a row, and the shares of `fused`: what the
    other scores add is the feedback."""
    shares = fused.shares.copy()
    shares[row] = weights[row] * _NORMALIZATIONS[normalization](scores.astype(np.float64), table.ranks[row])
    again = _ranked(table, weights, shares)
    return Fused(again.order, fused.shares, again.scores, shares[row] - fused.shares[row])


def fuse_rrf(table: CandidateTable, weights: Sequence[float], rank_constant: float = 60.0) -> Fused:
    """Fuse by reciprocal ranks, counted from 1; `weights` one per leg, not all 0, `rank_constant` at least 0."""
    proposed = table.ranks > 0
    values = np.where(proposed, 1.0 / np.where(proposed, rank_constant + table.ranks, 1.0), 0.0)
    return _ranked(table, weights, values * np.array(weights)[:, None])


def _ranked(table: CandidateTable, weights: Sequence[float], shares: Float64Array) -> Fused:
    """Rank the documents that a leg of weight above 0 proposed by the sums of their shares (legs, u)."""
    scores = shares.sum(axis=0)
    proposing = np.flatnonzero((np.asarray(weights) > 0) & table.ranks.any(axis=1))
    ranks = table.ranks[proposing]
    columns = np.flatnonzero(ranks.any(axis=0))
    if proposing.size == 1:
        return Fused(columns[np.argsort(ranks[0, columns])], shares, scores)
    return Fused(columns[np.argsort(-scores[columns], kind="stable")], shares, scores)


def _range(scores: Float64Array, _: Int64Array, exponent: int = 1) -> Float64Array:
    least = float(np.fmin.reduce(scores, initial=np.nan))
    spread = float(np.fmax.reduce(scores, initial=np.nan)) - least
    values = FLOOR + (1 - FLOOR) * ((scores - least) / spread) ** exponent if spread > 0 else np.ones_like(scores)
    values[np.isnan(scores)] = 0.0
    return values


def _paper(scores: Float64Array, ranks: Int64Array) -> Float64Array:
    proposed = np.where(ranks > 0, scores, np.nan)
    least = float(np.fmin.reduce(proposed, initial=np.nan))
    spread = float(np.fmax.reduce(proposed, initial=np.nan)) - least
    return np.where(ranks > 0, (proposed - least) / max(spread, _SMALLEST_RANGE), 0.0)


_NORMALIZATIONS: Final[Mapping[Normalization, Callable[[Float64Array, Int64Array], Float64Array]]] = {
    "evidence": partial(_range, exponent=2),  # the caller weighs
    "range": _range,
    "paper": _paper,
}
