"""How many requests may be worked on and wait: what comes on top is refused at once, before its body is read."""

from threading import Lock
from types import TracebackType

from lightretriever.service.errors import OverloadedError

__all__ = ["Admission"]


class Admission:
    """Counts the requests inside: `with admission`. They may leave in other threads than they entered in."""

    def __init__(self, working: int, waiting: int) -> None:
        self._most = working + waiting
        self._waiting = waiting
        self._lock = Lock()
        self._inside = 0

    def check(self) -> None:
        """Raise OverloadedError if there is no room for another request."""
        if self._inside >= self._most:
            raise OverloadedError(
                f"{self._waiting} requests wait already, as many as may (max_waiting). Try again in a moment."
            )

    def enter(self) -> None:
        """Let a request in. OverloadedError if there is no room."""
        with self._lock:
            self.check()
            self._inside += 1

    def leave(self) -> None:
        """Let one out that was let in."""
        with self._lock:
            self._inside -= 1

    def __enter__(self) -> None:
        self.enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
