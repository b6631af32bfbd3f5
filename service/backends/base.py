"""What a backend is: the protocol of a leg, and of the store of documents.

A *leg* is one way of ranking: it proposes documents with scores. A *backend* is where a leg is searched. Documents are
named by their ordinals, their places in the order of writing, from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from lightretriever.service.schemas import LegName

__all__ = ["DocumentFilter", "DocumentStore", "EncodedQuery", "Leg", "Ordinals", "ScoredDocuments", "Scores"]

Ordinals = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]

DocumentFilter = Any
"""The documents that a condition holds for, in a form that is the backends' own: see `DocumentStore.where`."""


class ScoredDocuments(NamedTuple):
    """Documents that a leg found: ordinals (m,) int64 and scores (m,) float32, best first, ties by ordinal."""

    ordinals: Ordinals
    scores: Scores


@dataclass(slots=True)  # a frozen one takes several times as long to make
class EncodedQuery:
    """A query as the legs need it. Nobody changes it.

    terms: (t,) int32, different token ids ascending. counts: (t,) int64, how often each occurs. term_weights: (t,)
    float32, how often each counts: its count, but for tokens of further texts. weights: (t,) float32, what each weighs
    in the sparse leg. dense: (D,) float32 of length 1, None where nobody asked for it. parts: (t, D) float32, what each
    term adds to `dense`, None where nobody asked for it. text: the query's text, which BM25 splits into words.
    """

    terms: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int64]
    term_weights: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float32]
    dense: npt.NDArray[np.float32] | None
    parts: npt.NDArray[np.float32] | None = None
    text: str = ""

    @classmethod
    def of_text(cls, text: str) -> "EncodedQuery":
        """A text for BM25 alone: without tokens."""
        none = np.empty(0, np.int32)
        return cls(none, none.astype(np.int64), none.astype(np.float32), none.astype(np.float32), None, text=text)

    @classmethod
    def of_model(
        cls,
        terms: npt.NDArray[np.int32],
        weights: npt.NDArray[np.float32],
        dense: npt.NDArray[np.float32] | None,
    ) -> "EncodedQuery":
        """What a model made of a whole text: weights of different terms (t,), and a vector (D,) of length 1, if any."""
        return cls(terms, np.ones(terms.size, np.int64), np.ones(terms.size, np.float32), weights, dense)


class Leg(Protocol):
    """A leg in its backend. Any number of threads may call it at once."""

    @property
    def name(self) -> LegName:
        """The leg's name, as answers give it."""

    @property
    def backend(self) -> str:
        """The backend's name, as `/info`, metrics and log lines give it."""

    def search(self, query: EncodedQuery, count: int, among: DocumentFilter | None = None) -> ScoredDocuments:
        """Find the best `count` documents of those `among`; fewer if the leg finds no more.

        A document's score doesn't depend on `count` or `among`. ValueError if `count` is below 1.
        """

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents (m,) exactly as `search` does: (m,) float32. ValueError for an ordinal of none."""

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """What each of the query's terms adds to the scores of given documents: (m, t) float32."""

    def close(self) -> None:
        """Let go of what the leg alone holds; a second time does nothing."""


class DocumentStore(Protocol):
    """Where documents, their ids and their declared fields are. Any number of threads may call it at once."""

    @property
    def backend(self) -> str:
        """The backend's name."""

    @property
    def count(self) -> int:
        """Number of documents."""

    def documents(self, ordinals: Ordinals) -> list[bytes]:
        """Give the stored JSON of documents (m,), in this order."""

    def ordinal(self, document_id: str) -> int | None:
        """Give the ordinal of an id, None if no document has it."""

    def terms(self, ordinal: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Give the terms of a document (n,) int32, ascending, and their impacts (n,) int32."""

    def facets(self, field: str, ordinals: Ordinals) -> list[tuple[str, int]]:
        """Count the values of a keyword field over documents (m,): the most frequent first, ties by value."""

    def where(self, condition: Sequence[str]) -> DocumentFilter:
        """Find the documents that a condition holds for (its form: `service.search.filters`)."""

    def close(self) -> None:
        """Close the store; a second time does nothing."""
