"""The sparse leg in Lucene, on this machine. The documents are in the same index."""

from math import inf
from time import perf_counter
from typing import Final

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.sparse.index import FoundImpacts, ImpactIndex
from lightretriever.artifacts.sparse.vocabulary import Language
from lightretriever.service.backends.base import (
    DocumentFilter,
    EncodedQuery,
    Ordinals,
    ScoredDocuments,
    Scores,
    check_count,
)
from lightretriever.service.schemas import LegName

__all__ = ["LuceneSparse"]


class LuceneSparse:
    """Scores by the sum over the query's terms of weight times impact. Finds documents that score above 0."""

    name: Final[LegName] = "sparse"
    backend: Final = "lucene"

    def __init__(self, index: ImpactIndex, language: Language | None = None) -> None:
        """The caller closes the index, whose words are of a language."""
        self._index = index
        self._language: Language = language or "standard"

    def search(
        self, query: EncodedQuery, count: int, among: DocumentFilter | None = None, until: float = inf
    ) -> ScoredDocuments:
        """Find the best `count` documents. TimeoutError at the `perf_counter` time `until`, ValueError if `count` is
        below 1."""
        check_count(count)
        left_s = until - perf_counter()
        return ScoredDocuments(*self._index.search(query.terms, query.weights, count, among, left_s))

    def find(
        self, query: EncodedQuery, count: int, others: Ordinals, among: DocumentFilter | None, until: float
    ) -> FoundImpacts:
        """Find the best `count` documents as `search` does, and read the impacts of these and of others (m,).
        TimeoutError at the `perf_counter` time `until`."""
        asked = (query.terms, query.weights) if query.text is None else query.text
        return self._index.find(asked, count, others, among, until - perf_counter(), self._language, query.named)

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents; 0.0 for a document that shares no term. ValueError for an unknown ordinal."""
        if ((ordinals < 0) | (ordinals >= self._index.count)).any():
            raise ValueError(
                f"ordinals must be 0 to {self._index.count - 1}; got {ordinals.min()} to {ordinals.max()}."
            )
        return self._index.scores(query.terms, query.weights, ordinals)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Return each term's share: its weight times its impact in the document."""
        shares: npt.NDArray[np.float32] = self._index.impacts(query.terms, ordinals).astype(np.float32)
        shares *= query.weights
        return shares
