"""The protocol of a leg.

A *leg* is one way of ranking: it proposes documents with scores. A *backend* is the library that searches a leg. A
document's ordinal is its position in the order of writing, from 0.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from lightretriever.service.schemas import LegName

__all__ = ["DenseLeg", "DenseTokens", "DocumentFilter", "EncodedQuery", "Leg", "Ordinals", "ScoredDocuments", "Scores"]

Ordinals = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]

DocumentFilter = Any
"""The documents that match a condition, in a form that only the backends read: see `ImpactIndex.where`."""


class ScoredDocuments(NamedTuple):
    """Documents that a leg found: ordinals (m,) int64 and scores (m,) float32, best first, ties by ordinal."""

    ordinals: Ordinals
    scores: Scores


class DenseTokens(NamedTuple):
    """The tokens of a query in the dense leg, where its tokenizer is not that of the terms: distinct `ids` (u,) int32,
    ascending, their `counts` (u,) int64, and their `weights` (u,) float32 in the sum of table rows."""

    ids: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


@dataclass(slots=True)  # frozen would take several times as long to construct
class EncodedQuery:
    """A query as the legs read it; treat it as immutable.

    terms: (t,) int32, distinct token ids, ascending. counts: (t,) int64, their occurrences. term_weights: (t,) float32,
    their counts, each occurrence in an extra text times that text's weight. weights: (t,) float32, their weights in the
    sparse leg. dense: (D,) float32 of length 1, None if not requested. parts: (t, D) float32, each term's part of
    `dense`, None if not requested. text: the query's text, which BM25 splits into words. head: whether a model read the
    query, whose vector is then no sum over its terms. dense_tokens: what `dense` is made of, None if that is the terms;
    then `parts`, (u, D), are theirs, and `dense` is None if there are none.
    """

    terms: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    term_weights: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]
    dense: npt.NDArray[np.float32] | None
    parts: npt.NDArray[np.float32] | None = None
    text: str = ""
    head: bool = False
    dense_tokens: DenseTokens | None = None

    @classmethod
    def of_text(cls, text: str) -> "EncodedQuery":
        """A query for BM25 alone, without tokens."""
        none = np.empty(0, np.int32)
        return cls(none, none.astype(np.int64), none.astype(np.float32), none.astype(np.float32), None, text=text)

    @classmethod
    def of_model(
        cls,
        terms: npt.NDArray[np.int32],
        weights: npt.NDArray[np.float32],
        dense: npt.NDArray[np.float32] | None,
        text: str = "",
    ) -> "EncodedQuery":
        """A query that a model encoded: weights of distinct terms (t,), a vector (D,) of length 1, if any, and its
        text."""
        return cls(terms, np.ones(terms.size, np.int64), np.ones(terms.size, np.float32), weights, dense, text=text)


class Leg(Protocol):
    """A leg in its backend. Thread-safe."""

    @property
    def name(self) -> LegName:
        """The leg's name in answers."""

    @property
    def backend(self) -> str:
        """The backend's name in `/info`, metrics and log lines."""

    def search(self, query: EncodedQuery, count: int, among: DocumentFilter | None = None) -> ScoredDocuments:
        """Find the best `count` documents, or fewer, of those `among`.

        A document's score depends on neither `count` nor `among`. ValueError if `count` is below 1.
        """

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents (m,) exactly as `search` does: (m,) float32. ValueError for an unknown ordinal."""

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Give each query term's share of the scores of given documents: (m, t) float32. In the dense leg (m, u), of
        each of the query's `dense_tokens`, if it has any."""

    def close(self) -> None:
        """Release the resources that only this leg holds. Idempotent."""


class DenseLeg(Leg, Protocol):
    """The leg of vectors."""

    def vectors(self, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Give the vectors of documents (m,), as the index has them: (m, D) float32 of length 1."""
