"""How many requests may be worked on and wait: what comes on top is refused.

Asked in the event loop alone, so it needs no lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lightretriever.service.errors import OverloadedError

__all__ = ["Admission"]

_REFUSALS: Final = 400
"""Refusals a second, so that clients that try again at once leave the processor to those that are admitted."""

_MAX_PAUSE_S: Final = 1.0


class Admission:
    """Counts the requests that are `admitted`, of `most`."""

    def __init__(self, working: int, waiting: int) -> None:
        self.most = working + waiting
        self.waiting = waiting
        self.admitted = 0
        self._refused = 0.0

    def pause(self, now: float) -> float:
        """Return the seconds, at most `_MAX_PAUSE_S`, after which to answer a refusal of the time `now` in seconds."""
        self._refused = min(max(self._refused + 1 / _REFUSALS, now), now + _MAX_PAUSE_S)
        return self._refused - now

    def check(self) -> None:
        """Raise OverloadedError if there is no room for another request."""
        if self.admitted >= self.most:
            raise OverloadedError(
                f"{self.waiting} requests wait already, as many as may (max_waiting). Try again in a moment."
            )

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a request in the block. OverloadedError if there is no room."""
        self.check()
        self.admitted += 1
        try:
            yield
        finally:
            self.admitted -= 1
