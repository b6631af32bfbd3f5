"""A leg around a real one, for tests that break a part of it."""

import threading
from math import inf
from typing import cast

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.sparse.index import FoundImpacts
from lightretriever.service.backends.base import DocumentFilter, EncodedQuery, Leg, Ordinals, ScoredDocuments, Scores
from lightretriever.service.backends.local import FaissDense, LuceneSparse


class WrappedLeg:
    """Does what the real leg does, and `begin` before each search."""

    def __init__(self, leg: Leg) -> None:
        self._leg = leg
        self.name = leg.name
        self.backend = leg.backend

    def begin(self, count: int, until: float) -> None:
        """Do nothing."""

    def search(self, query: EncodedQuery, count: int, among: DocumentFilter | None) -> ScoredDocuments:
        self.begin(count, inf)
        return cast(FaissDense, self._leg).search(query, count, among)

    def find(
        self, query: EncodedQuery, count: int, others: Ordinals, among: DocumentFilter | None, until: float
    ) -> FoundImpacts:
        self.begin(count, until)
        return cast(LuceneSparse, self._leg).find(query, count, others, among, until)

    def nearest(self, query: EncodedQuery, count: int, among: DocumentFilter | None) -> Ordinals:
        self.begin(count, inf)
        return cast(FaissDense, self._leg).nearest(query, count, among)

    def scored(self, query: EncodedQuery, ordinals: Ordinals) -> tuple[npt.NDArray[np.float32], Scores]:
        return cast(FaissDense, self._leg).scored(query, ordinals)

    def vectors(self, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        return cast(FaissDense, self._leg).vectors(ordinals)

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        return self._leg.scores(query, ordinals)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        return self._leg.shares(query, ordinals)


class FailingLeg(WrappedLeg):
    """Raises, in search or only when it scores given documents."""

    def __init__(self, leg: Leg, *, search: bool = True) -> None:
        super().__init__(leg)
        self._search = search

    def begin(self, count: int, until: float) -> None:
        if self._search:
            raise OSError("broken leg")

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        raise OSError("broken leg")

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        raise OSError("broken leg")


class GatedLeg(WrappedLeg):
    """Lets searches for more documents than `few` wait until the gate opens, and counts them."""

    def __init__(self, leg: Leg, gate: threading.Event, few: int = 0) -> None:
        super().__init__(leg)
        self.gate = gate
        self.entered = threading.Semaphore(0)
        self.calls = 0
        self._few = few

    def begin(self, count: int, until: float) -> None:
        if count > self._few:
            self.calls += 1
            self.entered.release()
            self.gate.wait()
