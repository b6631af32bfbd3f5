"""Threads that work for requests. A job waits for a thread, or is handed to one that is idle."""

import logging
from collections import deque
from collections.abc import Callable
from threading import Lock, Thread, current_thread
from time import perf_counter
from typing import Final

__all__ = ["Crew", "Work"]

_log = logging.getLogger(__name__)
_JOIN_S: Final = 5.0

Work = Callable[[], object]


class _Sleeper:
    """An idle thread: whoever has work for it releases the lock."""

    __slots__ = ("wake", "work")

    def __init__(self) -> None:
        self.wake = Lock()
        self.wake.acquire()
        self.work: Work | None = None


class Crew:
    """At most `threads` daemon threads, which start when they are needed. The one that fell idle last is woken first:
    the processor's caches still have what it needs.

    The standard library's executor would do but for three things: nobody can ask it for an idle thread only, no other
    thread takes the place of one whose work doesn't end, and its threads keep the process from ending meanwhile.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._limit = threads
        self._lock = Lock()
        self._queue: deque[Work] = deque()
        self._idle: list[_Sleeper] = []
        self._members: set[Thread] = set()
        self._others: set[Thread] = set()
        self._started = 0
        self._closed = False

    def put(self, work: Work) -> None:
        """Let a thread do the work when its turn comes. RuntimeError if the crew is closed, or has no thread and can't
        have one."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the crew {self._name!r} is closed")
            if not self._hand_over(work):
                self._queue_up(work)

    def lend(self, work: Work) -> bool:
        """Let a thread do the work if one has nothing else to do; else False."""
        with self._lock:
            if self._hand_over(work):
                return True
            if self._closed or self._queue or len(self._members) >= self._limit:
                return False
            self._queue_up(work)
            return True

    def hire(self, work: Work) -> None:
        """Let a thread of its own do the work, at once; it ends with it."""
        with self._lock:
            self._start(lambda: self._do(work), self._others)

    def replace(self, thread: Thread) -> None:
        """Do without a thread from now on: its work doesn't end. It ends itself when the work does."""
        with self._lock:
            if thread in self._members:
                self._members.discard(thread)
                self._others.add(thread)
                if self._queue:
                    self._fill_up()

    def close(self, timeout: float = _JOIN_S) -> bool:
        """Refuse new work, finish what waits, end the threads. False if one is still busy after `timeout` seconds."""
        with self._lock:
            self._closed = True
            threads = [*self._members, *self._others]
            for sleeper in self._idle:
                sleeper.wake.release()
            self._idle.clear()
        until = perf_counter() + timeout
        for thread in threads:
            thread.join(max(0.0, until - perf_counter()))
        return not any(thread.is_alive() for thread in threads)

    def _hand_over(self, work: Work) -> bool:
        if not self._idle:
            return False
        sleeper = self._idle.pop()
        sleeper.work = work
        sleeper.wake.release()
        return True

    def _queue_up(self, work: Work) -> None:
        self._queue.append(work)
        try:
            self._fill_up()
        except RuntimeError:  # the system gives no more threads
            if not self._members:
                self._queue.pop()
                raise

    def _fill_up(self) -> None:
        if len(self._members) < self._limit:
            self._start(self._serve, self._members)

    def _start(self, target: Work, among: set[Thread]) -> None:
        thread = Thread(target=target, name=f"{self._name}-{self._started}", daemon=True)
        self._started += 1
        among.add(thread)
        try:
            thread.start()
        except BaseException:
            among.discard(thread)
            raise

    def _serve(self) -> None:
        sleeper = _Sleeper()
        while (work := self._next(sleeper)) is not None:
            self._do(work)
            del work  # nothing of a request outlives it here

    def _next(self, sleeper: _Sleeper) -> Work | None:
        thread = current_thread()
        with self._lock:
            if thread not in self._members:
                self._others.discard(thread)
                return None
            if self._queue:
                return self._queue.popleft()
            if self._closed:
                return None
            self._idle.append(sleeper)
        sleeper.wake.acquire()
        work, sleeper.work = sleeper.work, None
        return work

    def _do(self, work: Work) -> None:
        try:
            work()
        except Exception:
            _log.exception("work failed")
        thread = current_thread()
        if thread in self._others:
            with self._lock:
                self._others.discard(thread)
