"""An index in the place of a leg's own, for tests that break a part of it."""

import threading
from math import inf
from typing import Any

from lightretriever.service.schemas import LegName
from lightretriever.service.search.engine import SearchEngine


class WrappedLeg:
    """Stands in the place of an engine's dense or sparse index: does what that does, and `begin` before each search."""

    def __init__(self, engine: SearchEngine, leg: LegName) -> None:
        self.leg, self._backends = leg, engine.parts.backends
        self.index: Any = getattr(self._backends, leg)
        self._healthy = self.index
        setattr(self._backends, leg, self)

    def restore(self) -> None:
        """Put the real one back."""
        setattr(self._backends, self.leg, self._healthy)

    def begin(self, count: int, seconds: float) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.index, name)

        def searching(query: object, count: int, *others: Any) -> Any:
            self.begin(count, others[2] if name == "find" else inf)
            return found(query, count, *others)

        return searching if name in ("find", "search", "nearest") else found


class FailingLeg(WrappedLeg):
    """Raises, in search or only when it scores given documents."""

    def __init__(self, engine: SearchEngine, leg: LegName, *, search: bool = True) -> None:
        super().__init__(engine, leg)
        self._search = search

    def begin(self, count: int, seconds: float) -> None:
        if self._search:
            raise OSError("broken leg")

    def scores(self, *of: object) -> Any:
        raise OSError("broken leg")

    impacts = vectors = scores


class GatedLeg(WrappedLeg):
    """Hold searches for more documents than `few` until the gate opens, and count them. The sparse leg's end when
    they are late."""

    def __init__(self, engine: SearchEngine, leg: LegName, gate: threading.Event, few: int = 0) -> None:
        super().__init__(engine, leg)
        self.gate = gate
        self.entered = threading.Semaphore(0)
        self.calls = 0
        self._few = few

    def begin(self, count: int, seconds: float) -> None:
        if count > self._few:
            self.calls += 1
            self.entered.release()
            if not self.gate.wait(seconds if seconds < inf else None):
                raise TimeoutError("late")
