"""Bounded threads with deadlines.

Each leg, and the document store, works in a lane of its own: a stuck leg can take all threads of its lane, but none of
the others'. The standard library's executor would do but for three things: it has no notion of a call that nobody waits
for any more, its threads keep the process from ending while such a call runs, and its futures cost more than waiting
at a lock. These are daemon threads, and a call is waited for at a lock.
"""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from time import perf_counter
from typing import Any, Generic, Literal, TypeVar

__all__ = ["Call", "Lane", "LateError", "StuckError"]

T = TypeVar("T")
_State = Literal["waiting", "running", "done", "cancelled", "abandoned"]


class LateError(Exception):
    """A call was not finished in time."""


class StuckError(LateError):
    """A call was not begun, because every thread is held by one that doesn't end."""


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
        self._running: set[Call[Any]] = set()
        self._queue: SimpleQueue[Call[Any] | None] = SimpleQueue()
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
        call = Call(self, function, arguments)
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the lane {self.name!r} is closed")
            if self._all_stuck():
                raise StuckError(f"all {self._limit} threads of {self.name!r} are held by calls that don't end")
            self._unfinished += 1
            if self._unfinished > len(self._threads) < self._limit:
                self._start_thread()
        self._queue.put(call)
        return call

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

    def abandon(self, call: "Call[Any]") -> bool:
        """Give up waiting. A call that has not begun never will; one that runs is counted until it ends; one that has
        ended is let alone, and False."""
        with self._lock:
            if call.state == "waiting":
                call.state = "cancelled"
            elif call.state == "running":
                call.state = "abandoned"
                self.abandoned += 1
            return call.state != "done"

    def _all_stuck(self) -> bool:
        if len(self._running) < self._limit:
            return False
        begun_before = perf_counter() - self._patience
        return all(call.started < begun_before for call in self._running)

    def _start_thread(self) -> None:
        thread = Thread(target=self._work, name=f"{self.name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            if self._begun(call):
                call.run()
            self._ended(call)
            del call  # nothing of a request outlives it here

    def _begun(self, call: "Call[Any]") -> bool:
        with self._lock:
            if call.state == "cancelled":
                return False
            call.state = "running"
            call.started = perf_counter()
            self._running.add(call)
            return True

    def _ended(self, call: "Call[Any]") -> None:
        with self._lock:
            self._unfinished -= 1
            self._running.discard(call)
            if call.state == "abandoned":
                self.abandoned -= 1
            elif call.state == "running":
                call.state = "done"
        call.finished.release()


class Call(Generic[T]):
    """A call under way in a lane."""

    __slots__ = ("_arguments", "_ended", "_error", "_function", "_lane", "_value", "finished", "started", "state")

    def __init__(self, lane: Lane, function: Callable[..., T], arguments: tuple[Any, ...]) -> None:
        self._lane = lane
        self._function = function
        self._arguments = arguments
        self._value: T
        self._error: BaseException | None = None
        self._ended = 0.0
        self.started = 0.0
        self.state: _State = "waiting"
        """The lane's alone to change."""
        self.finished = Lock()
        """Held until the call has ended."""
        self.finished.acquire()

    def run(self) -> None:
        """Make the call; the lane's thread does."""
        try:
            self._value = self._function(*self._arguments)
        except BaseException as error:
            self._error = error
        self._ended = perf_counter()

    def abandon(self) -> None:
        """Give up waiting for the call. Does nothing to a call that ended, nor a second time."""
        self._lane.abandon(self)

    def result(self, until: float) -> tuple[T, float, float]:
        """Wait until the `perf_counter` time `until`; give the value and the times when the call began and ended.

        Raises what the call raised, or LateError, after which the call is abandoned. To be asked once.
        """
        if not self.finished.acquire(timeout=max(0.0, until - perf_counter())) and self._lane.abandon(self):
            raise LateError(f"{self._lane.name!r} was not finished in time")
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # an error holds the frames it went through, and so itself
        return self._value, self.started, self._ended
