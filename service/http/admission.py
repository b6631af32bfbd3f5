"""How many requests may be worked on and wait: what comes on top is refused at once, before its body is read.

Asked in the event loop alone, so it needs no lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from lightretriever.service.errors import OverloadedError

__all__ = ["Admission"]


class Admission:
    """Counts the places that requests have `taken`, of `most`."""

    def __init__(self, working: int, waiting: int) -> None:
        self.most = working + waiting
        self.waiting = waiting
        self.taken = 0

    def check(self) -> None:
        """Raise OverloadedError if there is no room for another request."""
        if self.taken >= self.most:
            raise OverloadedError(
                f"{self.waiting} requests wait already, as many as may (max_waiting). Try again in a moment."
            )

    @contextmanager
    def enter(self, cost: int = 1, *, inside: int = 0) -> Iterator[None]:
        """Take the places that a request costs, but at most those that may wait, beside those that it has `inside`
        already: the largest batch is let in beside requests that are worked on. OverloadedError if too few are free."""
        if not inside:
            self.check()
        places = min(cost, max(1, self.waiting)) - inside
        if self.taken + places > self.most:
            raise OverloadedError(
                f"The request counts as {cost}, and too few places are free (max_waiting is {self.waiting}). "
                "Ask for less at once, or try again in a moment."
            )
        self.taken += places
        try:
            yield
        finally:
            self.taken -= places
