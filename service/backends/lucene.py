"""The sparse leg and BM25 in Lucene, on this machine. The documents are in the same index."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.sparse.bm25 import WordSearch
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.spelling import Spelling
from lightretriever.service.backends.base import DocumentFilter, EncodedQuery, Ordinals, ScoredDocuments, Scores
from lightretriever.service.schemas import LegName

__all__ = ["LuceneBm25", "LuceneSparse", "LuceneWords"]


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
        """Do nothing: `Backends` closes the index."""


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
        """Do nothing: `Backends` closes the index."""


class LuceneWords:
    """The words of title and text: for BM25 as stems, and as they are spelt."""

    def __init__(self, words: WordSearch, spelling: Spelling) -> None:
        self._words = words
        self._spelling = spelling
        self.spells: Final = spelling.available

    def shares(self, text: str, ordinals: Ordinals) -> Scores | None:
        """Give the share of a text's words that each document has, whatever their forms."""
        return self._words.shares(text, ordinals)

    def corrections(self, words: Sequence[str]) -> list[str]:
        """Give the corpus's word most like each word that it lacks."""
        return self._spelling.corrections(words)

    def completion(self, beginning: str) -> str:
        """Give the most frequent word with this beginning."""
        return self._spelling.completion(beginning)
