"""The compiled sparse leg, over plain posting lists beside the Lucene index (`index.accelerate: true`)."""

from typing import Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.sparse.compiled import CompiledImpacts
from lightretriever.service.backends.base import DocumentFilter, EncodedQuery, Ordinals, ScoredDocuments, Scores
from lightretriever.service.schemas import LegName

__all__ = ["CompiledSparse"]


class CompiledSparse:
    """Gives the same scores as `LuceneSparse`, to the last bit, several times faster."""

    name: Final[LegName] = "sparse"
    backend: Final = "compiled"

    def __init__(self, impacts: CompiledImpacts) -> None:
        self._impacts = impacts

    def search(self, query: EncodedQuery, count: int, among: DocumentFilter | None = None) -> ScoredDocuments:
        """Find the best `count` documents."""
        bits = None if among is None else among.bits
        return ScoredDocuments(*self._impacts.search(_ids(query), query.weights, count, bits))

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents; 0.0 for a document that shares no token."""
        return self._impacts.scores(_ids(query), query.weights, ordinals)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Give each term's share: its weight times its impact in the document."""
        shares: npt.NDArray[np.float32] = self._impacts.impacts(_ids(query), ordinals) * query.weights
        return shares

    def close(self) -> None:
        """Unmap the file."""
        self._impacts.close()


def _ids(query: EncodedQuery) -> npt.NDArray[np.int32]:
    """The token ids (t,) that the terms stand for."""
    return np.array([int(term) for term in query.terms], np.int32)
