"""How many requests may be worked on and wait: what comes on top is refused at once, before its body is read."""

from types import TracebackType

from service.errors import OverloadedError

__all__ = ["Admission"]


class Admission:
    """Counts the requests inside: `with admission`. For the event loop alone, so without a lock."""

    def __init__(self, working: int, waiting: int) -> None:
        self._most = working + waiting
        self._waiting = waiting
        self._inside = 0

    def check(self) -> None:
        """Raise OverloadedError if there is no room for another request."""
        if self._inside >= self._most:
            raise OverloadedError(
                f"{self._waiting} requests wait already, as many as may (max_waiting). Try again in a moment."
            )

    def __enter__(self) -> None:
        self.check()
        self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside -= 1
