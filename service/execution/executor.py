"""Bounded thread pools for calls that can't be interrupted.

Each leg has a lane, its own pool, so that calls that hang in one backend take no threads from the others. Requests have
one too. A caller waits for its calls until a deadline and abandons those that are late; an abandoned call keeps its
thread until it ends.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import perf_counter, thread_time
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")

Reason = Literal["late", "stuck", "failed"]
"""Why a call gave no value: it was too slow, no thread was free for it, or it raised."""


@dataclass(slots=True)
class Outcome(Generic[T]):
    """The result of a call: its value, or the reason for having none, with the error that it raised, if any. `started`
    and `ended` are `perf_counter` times in seconds, both 0 for a call that did not end. `handed_s` are the seconds of a
    processor that another thread spent on it."""

    value: T | None = None
    reason: Reason | None = None
    error: Exception | None = None
    started: float = 0.0
    ended: float = 0.0
    handed_s: float = 0.0


class Call(Generic[T]):
    """A call in a lane. `future` completes when it ends; `started` is a `perf_counter` time, 0 before."""

    __slots__ = ("_function", "_given_up", "_lane", "future", "started")

    def __init__(self, lane: "Lane", function: Callable[[], T]) -> None:
        self._lane = lane
        self._function = function
        self._given_up = False
        self.started = 0.0
        self.future: Future[T] = lane.pool.submit(self._run)

    def give_up(self) -> bool:
        """Abandon the call. False if it has just ended."""
        if self.future.cancel():
            return True
        with self._lane.lock:
            if self not in self._lane.running:
                return False
            self._given_up = True
            self._lane.abandoned += 1
            return True

    def _run(self) -> T:
        lane = self._lane
        self.started = perf_counter()
        with lane.lock:
            lane.running.add(self)
        try:
            return self._function()
        finally:
            with lane.lock:
                lane.running.discard(self)
                lane.abandoned -= self._given_up


class Lane:
    """A pool of `threads` threads for calls of one kind. A call that runs longer than `patience_s` seconds is stuck.
    While stuck calls hold every thread, the lane refuses new calls."""

    def __init__(self, name: str, threads: int, *, patience_s: float) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self.lock = Lock()
        self.running: set[Call[Any]] = set()
        """Calls that hold a thread."""
        self.abandoned = 0
        """Abandoned calls that still hold a thread."""
        self._threads = threads
        self._patience_s = patience_s

    @property
    def stuck(self) -> bool:
        """True if stuck calls hold every thread."""
        with self.lock:
            if len(self.running) < self._threads:
                return False
            begun_before = perf_counter() - self._patience_s
            return all(call.started < begun_before for call in self.running)

    def submit(self, function: Callable[[], T]) -> Call[T] | None:
        """Submit a call; None if the lane is stuck. RuntimeError if it is closed."""
        if len(self.running) >= self._threads and self.stuck:
            return None
        return Call(self, function)

    def close(self) -> None:
        """Refuse new calls and end the threads; the thread of an abandoned call ends when the call does."""
        self.pool.shutdown(wait=not self.abandoned, cancel_futures=True)


class Executor:
    """The lanes of an engine."""

    def __init__(self) -> None:
        self.lanes: dict[str, Lane] = {}

    def add(self, name: str, threads: int, *, patience_s: float) -> None:
        """Add a lane."""
        self.lanes[name] = Lane(name, threads, patience_s=patience_s)

    def begin(self, lane: str, function: Callable[[], T], deadline: float) -> Callable[[], Outcome[T]]:
        """Begin a call in a lane, and return what waits for its outcome until the `perf_counter` time `deadline`.
        Neither raises anything."""
        call = self.lanes[lane].submit(partial(_handed, function, deadline))

        def outcome() -> Outcome[T]:
            if call is None:
                return Outcome(reason="stuck")
            wait([call.future], max(0.0, deadline - perf_counter()))
            late = not call.future.done() and call.give_up()
            return Outcome(reason="late") if late else call.future.result()

        return outcome

    @property
    def stuck(self) -> list[str]:
        """Names of the lanes that refuse calls."""
        return [name for name, lane in self.lanes.items() if lane.stuck]

    @property
    def abandoned(self) -> int:
        """Abandoned calls that still hold a thread."""
        return sum(lane.abandoned for lane in self.lanes.values())

    def close(self) -> None:
        """Close every lane."""
        for lane in self.lanes.values():
            lane.close()


def call_here(function: Callable[[], T], deadline: float) -> Outcome[T]:
    """Run a call in this thread, unless the `perf_counter` time `deadline` has come. A TimeoutError makes it late."""
    started = perf_counter()
    if started >= deadline:
        return Outcome(reason="late")
    try:
        value = function()
    except TimeoutError as error:
        return Outcome(reason="late", error=error)
    except Exception as error:
        return Outcome(reason="failed", error=error)
    return Outcome(value, started=started, ended=perf_counter())


def _handed(function: Callable[[], T], deadline: float) -> Outcome[T]:
    """Run a call as `call_here` does, and measure the time that its thread computed."""
    began = thread_time()
    outcome = call_here(function, deadline)
    outcome.handed_s = thread_time() - began
    return outcome
