"""Bounded threads with deadlines.

Each leg, and the document store, works in a lane of its own: a stuck leg can take all threads of its lane, but none of
the others'. The standard library's executor would do but for two things: it has no notion of a call that nobody waits
for any more, and its threads keep the process from ending while such a call runs. These are daemon threads.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Any, Generic, TypeVar

__all__ = ["Call", "Lane", "LateError", "StuckError"]

T = TypeVar("T")


class LateError(Exception):
    """A call was not finished in time."""


class StuckError(LateError):
    """A call was not begun, because every thread is held by one that doesn't end."""


@dataclass(frozen=True, slots=True)
class _Job:
    future: "Future[tuple[Any, float, float]]"
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Lane:
    """A named queue of calls, worked on by at most `threads` daemon threads, which start when they are needed.

    A call that runs for more than `patience` seconds counts as stuck, however soon its caller gave it up: a slow call
    with an impatient caller is none. While all threads are held by stuck calls, new calls are refused.
    """

    def __init__(self, name: str, threads: int, *, patience: float) -> None:
        self.name = name
        self.abandoned = 0
        """Calls that nobody waits for any more and that still run."""
        self._limit = threads
        self._patience = patience
        self._started: dict[Future[Any], float] = {}
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._unfinished = 0
        self._closed = False

    @property
    def stuck(self) -> bool:
        """Whether all threads are held by calls that run for longer than the lane's patience."""
        with self._lock:
            return self._all_stuck()

    def call(self, function: Callable[..., T], *arguments: Any) -> "Call[T]":
        """Let a thread of this lane call `function`. StuckError if the lane is stuck, RuntimeError if closed."""
        future: Future[tuple[T, float, float]] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the lane {self.name!r} is closed")
            if self._all_stuck():
                raise StuckError(f"all {self._limit} threads of {self.name!r} are held by calls that don't end")
            self._unfinished += 1
            if self._unfinished > len(self._threads) < self._limit:
                self._start_thread()
        self._queue.put(_Job(future, function, arguments))
        return Call(self, future)

    def close(self, timeout: float = 5.0) -> bool:
        """Refuse new calls, finish those that wait, end the threads. False if one is still busy after `timeout` s."""
        with self._lock:
            self._closed = True
            threads = list(self._threads)
        for _ in threads:
            self._queue.put(None)
        until = perf_counter() + timeout
        for thread in threads:
            thread.join(max(0.0, until - perf_counter()))
        return not any(thread.is_alive() for thread in threads)

    def abandon(self, future: "Future[Any]") -> None:
        """Give up waiting. A call that has not begun never will; one that runs is counted until it ends."""
        if future.cancel():
            return
        with self._lock:
            self.abandoned += 1
        future.add_done_callback(self._returned)

    def _returned(self, _: "Future[Any]") -> None:
        with self._lock:
            self.abandoned -= 1

    def _all_stuck(self) -> bool:
        begun_before = perf_counter() - self._patience
        return sum(started < begun_before for started in self._started.values()) >= self._limit

    def _start_thread(self) -> None:
        thread = Thread(target=self._work, name=f"{self.name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            if job.future.set_running_or_notify_cancel():
                started = perf_counter()
                with self._lock:
                    self._started[job.future] = started
                try:
                    value = job.function(*job.arguments)
                except BaseException as error:
                    job.future.set_exception(error)
                else:
                    job.future.set_result((value, started, perf_counter()))
            with self._lock:
                self._unfinished -= 1
                self._started.pop(job.future, None)
            del job  # nothing of a request outlives it here


class Call(Generic[T]):
    """A call under way in a lane."""

    __slots__ = ("_abandoned", "_future", "_lane")

    def __init__(self, lane: Lane, future: "Future[tuple[T, float, float]]") -> None:
        self._lane = lane
        self._future = future
        self._abandoned = False

    def abandon(self) -> None:
        """Give up waiting for the call. Does nothing to a call that ended, nor a second time."""
        if not self._abandoned and not self._future.done():
            self._abandoned = True
            self._lane.abandon(self._future)

    def result(self, until: float) -> tuple[T, float, float]:
        """Wait until the `perf_counter` time `until`; give the value and the times when the call began and ended.

        Raises what the call raised, or LateError, after which the call is abandoned.
        """
        try:
            return self._future.result(max(0.0, until - perf_counter()))
        except TimeoutError:
            if self._future.done() and not self._future.cancelled():
                return self._future.result()  # it ended just now, or raised a TimeoutError of its own
            self.abandon()
            raise LateError(f"{self._lane.name!r} was not finished in time") from None
