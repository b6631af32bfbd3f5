"""The dense leg in Faiss, on this machine."""

from math import inf
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dense.index import DenseIndex, products
from lightretriever.service.backends.base import (
    DocumentFilter,
    EncodedQuery,
    Ordinals,
    ScoredDocuments,
    Scores,
    check_count,
)
from lightretriever.service.schemas import LegName

if TYPE_CHECKING:
    from lightretriever.artifacts.dense.later import LaterIndex

__all__ = ["FaissDense"]


class FaissDense:
    """Scores by the cosine of the query's and the document's vectors. The query needs a dense vector.

    The index is mapped into memory, and freed with its last reference.
    """

    name: Final[LegName] = "dense"
    backend: Final = "faiss"

    def __init__(self, index: "DenseIndex | LaterIndex") -> None:
        self._index = index

    @property
    def search_bytes(self) -> int:
        """About how many bytes of the index a search reads."""
        return self._index.search_bytes

    def search(
        self, query: EncodedQuery, count: int, among: DocumentFilter | None = None, until: float = inf
    ) -> ScoredDocuments:
        """Find the best `count` documents. Faiss can't be interrupted, so `until` ends nothing. ValueError if `count`
        is below 1."""
        check_count(count)
        return ScoredDocuments(*self._index.search(_vector(query), count, None if among is None else among.bits))

    def nearest(self, query: EncodedQuery, count: int, among: DocumentFilter | None) -> Ordinals:
        """Find the documents (m,) that `search` scores and picks the best `count` from."""
        return self._index.nearest(_vector(query), count, None if among is None else among.bits)

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents."""
        return self._index.scores(_vector(query), ordinals)

    def scored(self, query: EncodedQuery, ordinals: Ordinals) -> tuple[npt.NDArray[np.float32], Scores]:
        """Return the vectors of given documents (m, D), as the index has them, and their scores (m,)."""
        vectors = self._index.vectors(ordinals)
        return vectors, products(vectors, _vector(query))

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Return each token's share. ValueError without parts of the query's vector."""
        return query.dense_shares(self._index.vectors(ordinals))

    def vectors(self, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Return the vectors of documents (m, D), as the index has them."""
        return self._index.vectors(ordinals)


def _vector(query: EncodedQuery) -> npt.NDArray[np.float32]:
    """Return the dense vector (D,) of a query. ValueError if it was encoded without one."""
    if query.dense is None:
        raise ValueError("the query was encoded without its dense vector")
    return query.dense
