"""Threads that work for requests. Those that are idle wait for work, and for requests that come in themselves."""

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, Thread, current_thread, get_ident
from time import perf_counter
from typing import Final

from lightretriever.service.execution.lookout import AT_ONCE, Ready, open_lookout

__all__ = ["Crew", "Work"]

_log = logging.getLogger(__name__)
_JOIN_S: Final = 5.0
_LOOK_S: Final = 0.001  # a thread that has work looks after the sockets so often,
_LATE_S: Final = 0.05  # and whoever sees to it that one looks at all, when none has for so long

Work = Callable[[], object]


class Crew:
    """At most `threads` daemon threads, which start when they are needed. The one that fell idle last is woken first:
    the processor's caches still have what it needs.

    The standard library's executor would do but for four things: nobody can ask it for an idle thread only, its idle
    threads don't look after sockets, no other thread takes the place of one whose work doesn't end, and its threads
    keep the process from ending meanwhile.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._limit = threads
        self._lock = Lock()
        self._queue: deque[Work] = deque()
        self._lookout = open_lookout()
        self._idle = 0
        self._called = 0  # of the idle ones, those that will wake
        self._looking: set[int] = set()
        self._looked = 0.0
        self._members: set[Thread] = set()
        self._others: set[Thread] = set()
        self._started = 0
        self._closed = False
        self._gone = False

    def put(self, work: Work) -> None:
        """Let a thread do the work when its turn comes. RuntimeError if the crew is closed, or has no thread and can't
        have one."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"the crew {self._name!r} is closed")
            self._queue.append(work)
            if get_ident() in self._looking:
                return  # it sees to it when it has looked after all sockets
            try:
                self._find_thread()
            except RuntimeError:  # the system gives no more
                if not self._members:
                    self._queue.pop()
                    raise

    def lend(self, work: Work) -> bool:
        """Let a thread do the work if one has nothing else to do; else False."""
        with self._lock:
            if self._idle <= self._called and (self._closed or self._queue or len(self._members) >= self._limit):
                return False
            self._queue.append(work)
            try:
                self._find_thread()
            except RuntimeError:
                self._queue.pop()
                return False
            return True

    def watch(self, socket: int, ready: Ready) -> None:
        """Let idle threads, and between two works the others, look after a socket. `ready` is called when it has
        something to read, and may put work; for the last time when it is let go. OSError where that can't be,
        ValueError when the crew is closed."""
        self._lookout.watch(socket, ready)

    def unwatch(self, socket: int) -> None:
        """Look after a socket no longer."""
        self._lookout.unwatch(socket)

    def look_if_late(self) -> None:
        """Look once after the sockets if no thread has for long: all may have work that takes long. To be called now
        and then."""
        if self._idle or perf_counter() - self._looked <= _LATE_S:
            return
        for _ in range(0, len(self._lookout.watched), AT_ONCE):  # and no more, were they all ready again at once
            called, more = self._look(0.0)
            with self._lock:
                self._go_on(called, len(self._queue))
            if not more:
                return

    def hire(self, work: Work) -> None:
        """Let a thread of its own do the work, at once; it ends with it. Where the system gives none, the work is done
        when one of the others can."""
        try:
            with self._lock:
                self._start(lambda: self._do_alone(work), self._others)
        except RuntimeError:
            with self._lock:
                self._queue.append(work)
                self._go_on(False, 1)
            _log.exception("no thread can be started")

    def replace(self, thread: Thread) -> None:
        """Do without a thread from now on: its work doesn't end. It ends itself when the work does."""
        with self._lock:
            if thread in self._members:
                self._members.discard(thread)
                self._others.add(thread)
                if self._queue or self._lookout.watched:
                    self._go_on(False, 1)

    def close(self, timeout: float = _JOIN_S) -> bool:
        """Refuse new work, finish what waits, end the threads. False if one is still busy after `timeout` seconds."""
        with self._lock:
            self._closed = True
        until = perf_counter() + timeout
        self.let_go()
        while not self._gone and (threads := self._alive()):
            self._lookout.call()  # who hears it, and ends, calls the next one
            left = until - perf_counter()
            if left <= 0:
                return False
            threads[0].join(left)
        if not self._gone:
            self._gone = True
            self._lookout.close()
        return True

    def let_go(self) -> None:
        """Look after no socket any more: another crew will."""
        for ready in self._lookout.watched:
            self._tell(ready, True)

    def _alive(self) -> list[Thread]:
        with self._lock:
            return [thread for thread in (*self._members, *self._others) if thread.is_alive()]

    def _find_thread(self) -> None:
        """Call or start a thread for what was queued; without one, it waits for those that have other work.
        RuntimeError if one should be started and the system gives none."""
        if self._idle > self._called:
            self._called += 1
            self._lookout.call()
        elif len(self._members) < self._limit:
            self._start(self._serve, self._members)

    def _go_on(self, called: bool, count: int) -> None:
        """Find threads for so many works, as far as there are any. After a look, several calls may have come as one,
        and to this thread, whomever they were for."""
        if called:
            self._called = 0
        with suppress(RuntimeError):
            for _ in range(count):
                self._find_thread()

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
        while (work := self._next()) is not None:
            self._do(work)
            del work  # nothing of a request outlives it here

    def _next(self) -> Work | None:
        thread = current_thread()
        while True:
            with self._lock:
                if thread not in self._members:
                    self._others.discard(thread)  # and not before: whoever closes waits for those it knows
                    # It may have been replaced when it was idle already, and have heard a call.
                    self._go_on(False, len(self._queue))
                    if self._closed:
                        self._lookout.call()
                    return None
                hurry = perf_counter() - self._looked > _LOOK_S
                if self._queue and not hurry:
                    return self._queue.popleft()
                if self._closed and not self._queue:
                    self._lookout.call()
                    return None
                wait = not self._queue
                self._idle += wait
            called, _ = self._look(None if wait else 0.0)
            with self._lock:
                self._idle -= wait
                self._go_on(called, len(self._queue) - 1)

    def _look(self, seconds: float | None) -> tuple[bool, bool]:
        """Wait so long, and look after the sockets that have something to read; whether there was a call, and whether
        there may be more sockets."""
        called, told = self._lookout.wait(seconds)
        self._looked = perf_counter()  # others need not now
        if told:
            self._looking.add(get_ident())
            for ready, left in told:
                self._tell(ready, left)
            self._looking.discard(get_ident())
            self._looked = perf_counter()  # it has work for a while, however long it took to look
        return called, len(told) == AT_ONCE

    def _tell(self, ready: Ready, left: bool) -> None:
        try:
            ready(left)
        except Exception:
            _log.exception("reading failed")

    def _do_alone(self, work: Work) -> None:
        self._do(work)
        with self._lock:
            self._others.discard(current_thread())

    def _do(self, work: Work) -> None:
        try:
            work()
        except Exception:
            _log.exception("work failed")
