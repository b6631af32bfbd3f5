"""A leg around a real one, for tests that break a part of it."""

import threading
from math import inf
from typing import Any, NoReturn

from lightretriever.service.backends.base import Leg

_Leg: Any = object


class WrappedLeg(_Leg):  # type: ignore[misc]  # of what any leg is
    """Does what the real leg does, and `begin` before each search."""

    def __init__(self, leg: Leg) -> None:
        self._leg = leg

    def begin(self, count: int, until: float) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._leg, name)

        def searching(query: object, count: int, *others: Any) -> Any:
            self.begin(count, others[-1] if name == "find" else inf)
            return found(query, count, *others)

        return searching if name in ("find", "search", "nearest") else found


class FailingLeg(WrappedLeg):
    """Raises, in search or only when it scores given documents."""

    def __init__(self, leg: Leg, *, search: bool = True) -> None:
        super().__init__(leg)
        self._search = search

    def begin(self, count: int, until: float) -> None:
        if self._search:
            raise OSError("broken leg")

    def scores(self, *_: object) -> NoReturn:
        raise OSError("broken leg")

    shares = scores


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
