"""Calls into backends, which can't be interrupted: bounded pools of threads, and one deadline for several calls.

Each backend's calls have a lane, a pool of its own, so that calls that hang in one backend take none of the others'
threads. A caller waits for its calls until a deadline and gives up those that are late; such a call keeps its thread
until it ends.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import Any, Generic, Literal, Self, TypeVar, cast

__all__ = ["Executor", "Lane", "Outcome", "Reason"]

T = TypeVar("T")
Name = TypeVar("Name", bound=str)

Reason = Literal["late", "stuck", "failed"]
"""Why a call gave no value: it was too slow, there was no thread for it, or it raised."""


@dataclass(slots=True)
class Outcome(Generic[T]):
    """What came of a call: its value, or the reason why there is none, with the error if it raised one.

    `started` and `ended` are `perf_counter` times in seconds, both 0 for a call that did not end.
    """

    value: T | None = None
    reason: Reason | None = None
    error: BaseException | None = None
    started: float = 0.0
    ended: float = 0.0

    def get(self) -> T:
        """The value of a call that gave one."""
        return cast(T, self.value)


class _Call(Generic[T]):
    """A call that runs in a lane."""

    __slots__ = ("ended", "function", "future", "given_up", "lane", "started")

    def __init__(self, lane: "Lane", function: Callable[[], T]) -> None:
        self.lane = lane
        self.function = function
        self.started = 0.0
        self.ended = 0.0
        self.given_up = False
        self.future: Future[T]

    def run(self) -> T:
        self.started = perf_counter()
        self.lane.enter(self)
        try:
            return self.function()
        finally:
            self.ended = perf_counter()
            self.lane.leave(self)


class Lane:
    """A pool of `threads` threads for the calls into one backend.

    A call that runs for longer than `patience_s` seconds counts as stuck. While stuck calls hold every thread, the lane
    refuses new calls.
    """

    def __init__(self, name: str, threads: int, *, patience_s: float) -> None:
        self.name = name
        self.abandoned = 0
        """Calls that were given up and still hold a thread."""
        self._threads = threads
        self._patience_s = patience_s
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = Lock()
        self._running: set[_Call[Any]] = set()

    @property
    def stuck(self) -> bool:
        """Whether stuck calls hold every thread."""
        with self._lock:
            if len(self._running) < self._threads:
                return False
            begun_before = perf_counter() - self._patience_s
            return all(call.started < begun_before for call in self._running)

    def submit(self, function: Callable[[], T]) -> _Call[T] | None:
        """Begin a call; None if the lane is stuck. RuntimeError if it is closed."""
        if len(self._running) >= self._threads and self.stuck:
            return None
        call = _Call(self, function)
        call.future = self._pool.submit(call.run)
        return call

    def enter(self, call: _Call[Any]) -> None:
        """Note that a call begins."""
        with self._lock:
            self._running.add(call)

    def leave(self, call: _Call[Any]) -> None:
        """Note that a call ended."""
        with self._lock:
            self._running.discard(call)
            self.abandoned -= call.given_up

    def give_up(self, call: _Call[Any]) -> bool:
        """Wait for a call no longer. False if it has just ended."""
        if call.future.cancel():
            return True
        with self._lock:
            if call not in self._running:
                return False
            call.given_up = True
            self.abandoned += 1
            return True

    def close(self) -> None:
        """Refuse new calls and end the threads; those of abandoned calls end with these."""
        self._pool.shutdown(wait=not self.abandoned, cancel_futures=True)


class Executor:
    """The lanes of an engine."""

    def __init__(self, lanes: Iterable[str], threads: int, *, patience_s: float) -> None:
        self.lanes = {name: Lane(name, threads, patience_s=patience_s) for name in lanes}

    def gather(self, calls: Mapping[Name, tuple[str, Callable[[], T]]], until: float) -> dict[Name, Outcome[T]]:
        """Make calls at the same time and wait for them until the `perf_counter` time `until`.

        `calls` maps a name to the lane and the function of a call. Every name gets an outcome; nothing is raised.
        """
        submitted = {name: self.lanes[lane].submit(function) for name, (lane, function) in calls.items()}
        wait([call.future for call in submitted.values() if call], max(0.0, until - perf_counter()))
        return {name: _outcome(call) if call else Outcome(reason="stuck") for name, call in submitted.items()}

    def call(self, lane: str, function: Callable[[], T], until: float) -> Outcome[T]:
        """Make one call, as `gather` does."""
        return self.gather({lane: (lane, function)}, until)[lane]

    @property
    def stuck(self) -> list[str]:
        """The lanes that refuse calls."""
        return [name for name, lane in self.lanes.items() if lane.stuck]

    @property
    def abandoned(self) -> int:
        """Calls that were given up and still hold a thread."""
        return sum(lane.abandoned for lane in self.lanes.values())

    def close(self) -> None:
        """Close every lane."""
        for lane in self.lanes.values():
            lane.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _outcome(call: _Call[T]) -> Outcome[T]:
    if not call.future.done() and call.lane.give_up(call):
        return Outcome(reason="late")
    error = call.future.exception()
    if error is not None:
        return Outcome(reason="failed", error=error, started=call.started, ended=call.ended)
    return Outcome(call.future.result(), started=call.started, ended=call.ended)
