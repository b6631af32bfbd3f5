"""How many requests may be worked on and wait: what comes on top is refused at once.

Asked in the event loop alone, so it needs no lock.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from lightretriever.service.errors import OverloadedError, TooCostlyError

__all__ = ["Admission"]


class Admission:
    """Counts the places that requests have `taken`, of `most`, and what those that are `heavy` cost together, of
    `max_cost`."""

    def __init__(self, working: int, waiting: int, max_cost: int) -> None:
        self.most = working + waiting
        self.waiting = waiting
        self.taken = 0
        self.max_cost = max_cost
        self.heavy = 0

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

    @contextmanager
    def enter_heavy(self, cost: int) -> Iterator[None]:
        """Take what a heavy request costs. TooCostlyError if that is more than any may, OverloadedError if others leave
        too little."""
        if cost > self.max_cost:
            raise TooCostlyError(
                f"The request costs as much as {cost:,} usual searches, at most {self.max_cost:,} are possible "
                "(max_cost). Ask for fewer hits, snippets or characters, or for less at once."
            )
        if self.heavy + cost > self.max_cost:
            raise OverloadedError(
                f"The request costs as much as {cost:,} usual searches, and others that run and wait as much as "
                f"{self.heavy:,}, together more than {self.max_cost:,} (max_cost). Try again in a moment."
            )
        self.heavy += cost
        try:
            yield
        finally:
            self.heavy -= cost
