"""How good answers are, and which setting of a library is compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import faiss
import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.evaluation.runs import ndcg_per_query
from research.libraries.library import DEPTH, Query, Source

__all__ = ["LEAST_RECALL", "NDCG_LOSS", "Exact", "Judged", "choose", "front", "ratio"]

Row = dict[str, Any]
Numbers = npt.NDArray[np.int64]
LEAST_RECALL: Final = 0.95
"""Share of the exact best 100 that a library has to find."""
NDCG_LOSS: Final = 0.002
"""How far below that of an exact search nDCG@10 may be."""
_ROUNDING: Final = 1e-6  # of a float32 score
_RESAMPLED: Final = 2000


@dataclass(frozen=True)
class Exact:
    """The exact answers to queries: `best`, ordinals of the best 100 of each, and `scores` of (query, ordinals)."""

    best: Sequence[Numbers]
    scores: Callable[[int, Numbers], npt.NDArray[np.float32]]

    @classmethod
    def sparse(cls, source: Source, queries: Sequence[Query]) -> "Exact":
        """Search the impacts by Lucene, which is exact."""
        index = source.bundle.sparse()
        best = [index.search(query.terms, query.weights, DEPTH)[0] for query in queries]
        return cls(best, lambda n, rows: index.scores(queries[n].terms, queries[n].weights, rows))

    @classmethod
    def dense(cls, source: Source, queries: Sequence[Query]) -> "Exact":
        """Compare each query with all vectors."""
        vectors, asked = source.vectors(), np.stack([query.dense for query in queries])
        best = faiss.knn(asked, vectors, min(DEPTH, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT)[1]
        return cls(list(best), lambda n, rows: vectors[rows] @ asked[n])

    def recall(self, number: int, found: Sequence[int]) -> float:
        """Give the share of the best 100 in an answer to a query; a document as good as the last of them counts."""
        best = self.best[number]
        if not len(best):
            return 1.0
        least = self.scores(number, best[-1:])[0]
        rows = np.unique(np.array(found[:DEPTH], np.int64))
        good = int((self.scores(number, rows) >= least - abs(least) * _ROUNDING).sum()) if len(rows) else 0
        return min(1.0, good / len(best))


@dataclass(frozen=True)
class Judged:
    """Judgments of queries, by their number, and the documents' ids."""

    qrels: Sequence[Mapping[str, int]]
    ids: Sequence[str]

    def ndcg(self, answers: Mapping[int, Sequence[int]]) -> float:
        """Give the mean nDCG@10 of answers by query."""
        run = {
            str(number): [(self.ids[row], float(-rank)) for rank, row in enumerate(found[:10])]
            for number, found in answers.items()
        }
        found = ndcg_per_query({str(number): self.qrels[number] for number in answers}, run)
        return float(np.mean(list(found.values())))


def choose(curve: Sequence[Row], measure: str, least: float) -> Row:
    """Give the setting with the smallest p50 of those whose measure is at least `least`, with `equal` true. If there is
    none, `equal` is false: the best by that measure, of equals the fastest."""
    good = [row for row in curve if row[measure] >= least]
    if good:
        return {**min(good, key=lambda row: row["p50_ms"]), "equal": True}
    return {**min(curve, key=lambda row: (-row[measure], row["p50_ms"])), "equal": False}


def front(curve: Sequence[Row], measure: str) -> list[Row]:
    """Give the settings that are better than all faster ones, fastest first."""
    kept: list[Row] = []
    for row in sorted(curve, key=lambda row: (row["p50_ms"], -row[measure])):
        if not kept or row[measure] > kept[-1][measure]:
            kept.append(row)
    return kept


def ratio(
    ours: Sequence[Sequence[float]], theirs: Sequence[Sequence[float]], figure: Callable[[Any], Any]
) -> tuple[float, float, float]:
    """Give a figure of our times divided by that of theirs, and its interval of 95 %.

    Times are seconds by turn; the interval comes from 2,000 samples of the turns, with replacement (bootstrap).
    """
    pair = [np.array(ours), np.array(theirs)]
    picked = np.random.default_rng(0).integers(len(ours), size=(_RESAMPLED, len(ours)))
    ratios = [float(figure(pair[0][turns]) / figure(pair[1][turns])) for turns in picked]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(figure(pair[0]) / figure(pair[1])), float(low), float(high)
