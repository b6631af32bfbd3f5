"""How many requests may be worked on and wait: what comes on top is refused at once, before its body is read.

Asked in the event loop alone, so it needs no lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from lightretriever.service.errors import OverloadedError

__all__ = ["Admission", "Places"]


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
    def enter(self) -> Iterator["Places"]:
        """Let a request in, with one place. OverloadedError if there is no room."""
        self.check()
        places = Places(self)
        try:
            yield places
        finally:
            self.taken -= places.count


class Places:
    """The places of one request, one at first."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.count = 1
        admission.taken += 1

    def take(self, cost: int) -> None:
        """Have as many places as the request costs, but at most all there are. OverloadedError if too few are free."""
        admission = self._admission
        more = min(cost, admission.most) - self.count
        if admission.taken + more > admission.most:
            raise OverloadedError(
                f"The request counts as {cost}, and too few places are free (max_waiting is {admission.waiting}). "
                "Ask for less at once, or try again in a moment."
            )
        self.count += more
        admission.taken += more
