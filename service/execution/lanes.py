"""Accounts of the calls into Faiss and Lucene, which can't be interrupted.

Each leg, and the document store, has a lane of its own: stuck calls into one of them can take all places of its lane,
but none of the others'.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from threading import Lock, Thread, current_thread
from time import perf_counter
from typing import Any, Generic, Literal, TypeVar

__all__ = ["Call", "Lane", "LateError", "StuckError"]

T = TypeVar("T")
_State = Literal["waiting", "running", "done", "given up"]


class LateError(Exception):
    """A call was not finished in time."""


class StuckError(LateError):
    """A call was not begun, because every place is held by one that doesn't end."""


class Lane:
    """A name and so many `places`, one for each call that runs.

    A call that runs for more than `patience` seconds counts as stuck, however soon its caller gave it up: a slow call
    with an impatient caller is none. While all places are held by stuck calls, new calls are refused.
    """

    def __init__(self, name: str, places: int, *, patience: float) -> None:
        self.name = name
        self.abandoned = 0
        """Calls that nobody waits for any more and that still run."""
        self._places = places
        self._patience = patience
        self._lock = Lock()
        self._running: set[Call[Any]] = set()
        self._waiting: deque[tuple[Call[Any], Callable[[Call[Any]], None]]] = deque()

    @property
    def stuck(self) -> bool:
        """Whether all places are held by calls that run for longer than the lane's patience."""
        with self._lock:
            if len(self._running) < self._places:
                return False
            begun_before = perf_counter() - self._patience
            return all(call.started < begun_before for call in self._running)

    def call(self, until: float, function: Callable[..., T], *arguments: Any) -> "Call[T]":
        """A call of `function` that is waited for until a `perf_counter` time. StuckError if the lane is stuck."""
        if len(self._running) >= self._places and self.stuck:
            raise StuckError(f"all {self._places} places of {self.name!r} are held by calls that don't end")
        return Call(self, until, function, arguments)

    def enter(self, call: "Call[Any]", later: "Callable[[Call[Any]], None]") -> bool:
        """Take a place. False if the call was given up, or if there is none; then `leave` will say when there is one,
        and ask for `later` to be called with the call."""
        with self._lock:
            if call.state != "waiting":
                return False
            if len(self._running) >= self._places:
                self._waiting.append((call, later))
                return False
            call.state = "running"
            call.thread = current_thread()
            call.started = perf_counter()
            self._running.add(call)
            return True

    def leave(self, call: "Call[Any]") -> tuple[bool, Callable[[], None] | None]:
        """Free the place of a call that ended. Tells whether anyone still waits for it, and what is to be done now
        by another thread, because it waited for a place."""
        with self._lock:
            self._running.discard(call)
            wanted = call.state == "running"
            if wanted:
                call.state = "done"
            else:
                self.abandoned -= 1
            return wanted, self._follower() if self._waiting else None

    def give_up(self, call: "Call[Any]") -> bool:
        """Wait for a call no longer. A call that has not begun never will; one that runs is counted until it ends; one
        that has ended, or was given up before, is let alone, and False."""
        with self._lock:
            if call.state not in ("waiting", "running"):
                return False
            self.abandoned += call.state == "running"
            call.state = "given up"
            return True

    def _follower(self) -> Callable[[], None] | None:
        while self._waiting:
            call, later = self._waiting.popleft()
            if call.state == "waiting":
                return partial(later, call)
        return None


class Call(Generic[T]):
    """A call in a lane, and what came of it."""

    __slots__ = (
        "_arguments",
        "_ended",
        "_error",
        "_function",
        "_value",
        "brief",
        "lane",
        "started",
        "state",
        "thread",
        "until",
    )

    def __init__(self, lane: Lane, until: float, function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self.lane = lane
        self.until = until
        """The `perf_counter` time when it is given up."""
        self.brief = False
        """Whether it takes less time than waking another thread for it would."""
        self.state: _State = "waiting"
        """The lane's alone to change."""
        self.thread: Thread | None = None
        """Where it runs or ran."""
        self.started = 0.0
        self._ended = 0.0
        self._function = function
        self._arguments = arguments
        self._value: T
        self._error: BaseException | None = None

    def run(self) -> None:
        """Make the call."""
        try:
            self._value = self._function(*self._arguments)
        except BaseException as error:
            self._error = error
        self._ended = perf_counter()

    def result(self) -> tuple[T, float, float]:
        """What the call gave, and the times when it began and ended. Raises what it raised, or LateError if it was
        given up. To be asked once."""
        if self.state != "done":
            raise LateError(f"{self.lane.name!r} was not finished in time")
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # an error holds the frames it went through, and so itself
        return self._value, self.started, self._ended
