"""How many requests may be worked on and wait: what comes on top is refused at once.

Asked in the event loop alone, so it needs no lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from lightretriever.service.errors import OverloadedError

__all__ = ["Admission"]


class Admission:
    """Counts the requests that are `admitted`, of `most`."""

    def __init__(self, working: int, waiting: int) -> None:
        self.most = working + waiting
        self.waiting = waiting
        self.admitted = 0

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
