"""A leg around a real one, for tests that break a part of it."""

from math import inf

import numpy as np
import numpy.typing as npt
from lightretriever.service.backends.base import DocumentFilter, EncodedQuery, Leg, Ordinals, ScoredDocuments, Scores

__all__ = ["WrappedLeg"]


class WrappedLeg:
    """Does what the real leg does."""

    def __init__(self, leg: Leg) -> None:
        self._leg = leg
        self.name = leg.name
        self.backend = leg.backend

    def search(
        self, query: EncodedQuery, count: int, among: DocumentFilter | None = None, until: float = inf
    ) -> ScoredDocuments:
        return self._leg.search(query, count, among, until)

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        return self._leg.scores(query, ordinals)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        return self._leg.shares(query, ordinals)
