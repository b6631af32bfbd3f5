"""The sparse leg, BM25 and the documents in Lucene, on this machine."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.sparse.bm25 import WordSearch
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.service.backends.base import DocumentFilter, EncodedQuery, Ordinals, ScoredDocuments, Scores
from lightretriever.service.schemas import LegName

__all__ = ["LuceneBm25", "LuceneDocuments", "LuceneSparse"]


class LuceneSparse:
    """Scores by the sum over the query's tokens of weight times impact. Finds documents that score above 0."""

    name: Final[LegName] = "sparse"
    backend: Final = "lucene"

    def __init__(self, index: ImpactIndex) -> None:
        """The caller closes the index."""
        self._index = index

    def search(self, query: EncodedQuery, count: int, among: DocumentFilter | None = None) -> ScoredDocuments:
        """Find the best `count` documents."""
        return ScoredDocuments(*self._index.search(query.terms, query.weights, count, among))

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents; 0.0 for a document that shares no token."""
        return self._index.scores(query.terms, query.weights, ordinals)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Give each term's share: its weight times its impact in the document."""
        shares: npt.NDArray[np.float32] = self._index.impacts(query.terms, ordinals) * query.weights
        return shares

    def close(self) -> None:
        """Do nothing: the store of documents closes the index."""


class LuceneBm25:
    """BM25 on the words of title and text. Finds documents that share a word."""

    name: Final[LegName] = "bm25"
    backend: Final = "lucene"

    def __init__(self, words: WordSearch) -> None:
        self._words = words

    def search(self, query: EncodedQuery, count: int, among: DocumentFilter | None = None) -> ScoredDocuments:
        """Find the best `count` documents."""
        return ScoredDocuments(*self._words.search(query.text, count, among))

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents; 0.0 for a document that shares no word."""
        return self._words.scores(query.text, ordinals)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Give zeros: BM25 ranks by words, not by tokens."""
        return np.zeros((ordinals.size, query.terms.size), np.float32)

    def close(self) -> None:
        """Do nothing: the store of documents closes the index."""


class LuceneDocuments:
    """The documents of a Lucene index; owns the index."""

    backend: Final = "lucene"

    def __init__(self, index: ImpactIndex) -> None:
        self._index = index
        self.count = index.count

    def documents(self, ordinals: Ordinals) -> list[bytes]:
        """Give the stored JSON of documents (m,)."""
        return self._index.documents(ordinals)

    def ordinal(self, document_id: str) -> int | None:
        """Give the ordinal of an id, None if no document has it."""
        return self._index.ordinal(document_id)

    def terms(self, ordinal: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Give the terms of a document and their impacts. Lucene visits every term of the index for this."""
        return self._index.terms(ordinal)

    def facets(self, field: str, ordinals: Ordinals) -> list[tuple[str, int]]:
        """Count the values of a keyword field over documents (m,)."""
        return self._index.counts(field, ordinals)

    def where(self, condition: Sequence[str]) -> DocumentFilter:
        """Find the documents that match a condition."""
        return self._index.where(condition)

    def close(self) -> None:
        """Close the index."""
        self._index.close()
