"""The legs of a search: dense in Faiss, sparse in Lucene, and, for comparison, BM25 in Lucene."""

from typing import Protocol

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.sparse.bm25 import WordSearch
from lightretriever.artifacts.sparse.index import DocumentSet, ImpactIndex
from lightretriever.service.search.encoder import EncodedQuery

__all__ = ["DenseLeg", "Found", "Leg", "SparseLeg", "WordLeg"]

Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Ordinals (m,) int64 and scores (m,) float32, best first, ties by ordinal."""


class Leg(Protocol):
    """Something that proposes documents for a query, and scores given ones. Called from several threads at once."""

    def search(self, query: EncodedQuery, count: int, among: DocumentSet | None = None) -> Found:
        """Find the best `count` documents, or fewer if it has no more; of those `among`, if given."""

    def scores(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Score given documents (m,) as `search` would: (m,) float32."""

    def shares(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """What each of the query's terms adds to the scores of given documents: (m, t) float32."""


class DenseLeg:
    """Cosine of the query's and the document's vector. Needs a query with a dense vector."""

    def __init__(self, index: DenseIndex) -> None:
        self._index = index

    def search(self, query: EncodedQuery, count: int, among: DocumentSet | None = None) -> Found:
        """Find the best `count` documents."""
        return self._index.search(_vector(query), count, None if among is None else among.bits)

    def scores(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Score given documents."""
        return self._index.scores(_vector(query), ordinals)

    def shares(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """What each term adds; needs a query with its parts."""
        if query.parts is None:
            raise ValueError("the query was encoded without the parts of its dense vector")
        shares: npt.NDArray[np.float32] = np.einsum("md,td->mt", self._index.vectors(ordinals), query.parts)
        return shares


class SparseLeg:
    """Sum over the query's tokens of weight times impact. Documents that score 0 or less, such as those that share no
    token, are not found."""

    def __init__(self, index: ImpactIndex) -> None:
        self._index = index

    def search(self, query: EncodedQuery, count: int, among: DocumentSet | None = None) -> Found:
        """Find the best `count` documents."""
        return self._index.search(query.terms, query.weights, count, among)

    def scores(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Score given documents, 0.0 where no token is shared."""
        return self._index.scores(query.terms, query.weights, ordinals)

    def shares(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """What each term adds: its weight times its impact in the document."""
        shares: npt.NDArray[np.float32] = self._index.impacts(query.terms, ordinals) * query.weights
        return shares


class WordLeg:
    """BM25 on the words of title and text. Documents that share no word are not found."""

    def __init__(self, words: WordSearch) -> None:
        self._words = words

    def search(self, query: EncodedQuery, count: int, among: DocumentSet | None = None) -> Found:
        """Find the best `count` documents."""
        return self._words.search(query.words, count, among)

    def scores(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Score given documents, 0.0 where no word is shared."""
        return self._words.scores(query.words, ordinals)

    def shares(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """None: a query for BM25 has no tokens, (m, 0) float32."""
        return np.empty((ordinals.size, query.terms.size), np.float32)


def _vector(query: EncodedQuery) -> npt.NDArray[np.float32]:
    if query.dense is None:
        raise ValueError("the query was encoded without its dense vector")
    return query.dense
