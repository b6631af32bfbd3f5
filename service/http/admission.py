"""Admission control: beyond a number of running and waiting requests, refuse further ones before reading the body."""

from threading import Lock
from types import TracebackType

from lightretriever.service.errors import OverloadedError

__all__ = ["Admission"]


class Admission:
    """Counts admitted requests: `with admission`. A request may leave in another thread than it entered in."""

    def __init__(self, working: int, waiting: int) -> None:
        self._most = working + waiting
        self._waiting = waiting
        self._lock = Lock()
        self._inside = 0

    def check(self) -> None:
        """Raise OverloadedError if no further request can be admitted."""
        if self._inside >= self._most:
            raise OverloadedError(
                f"{self._waiting} requests wait already, as many as may (max_waiting). Try again in a moment."
            )

    def enter(self) -> None:
        """Admit a request. OverloadedError if there are too many."""
        with self._lock:
            self.check()
            self._inside += 1

    def leave(self) -> None:
        """Count an admitted request as finished."""
        with self._lock:
            self._inside -= 1

    def __enter__(self) -> None:
        self.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
