"""Where idle threads wait: for somebody's call, and, on Linux, for sockets that have something to read.

A thread that waits for the sockets itself goes on with what it read there. Were they read by an event loop, it would
have to wake that thread first, which takes longer than reading and understanding a request.
"""

import os
import select
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, Protocol
from weakref import finalize

__all__ = ["AT_ONCE", "Lookout", "Ready", "open_lookout"]

Ready = Callable[[bool], object]
"""What is to be done when a socket has something to read; it is told whether it is the end: the other side has left, or
nobody will look any more."""

AT_ONCE: Final = 16
"""Sockets that one thread looks after before it begins to work."""


class Lookout(Protocol):
    """Used by many threads at once, but for `close`."""

    @property
    def watched(self) -> Sequence[Ready]:
        """What is to be done for each socket under watch."""

    def call(self) -> None:
        """Wake a thread that waits, or the next one that begins to. Several calls may wake one thread only."""

    def wait(self, seconds: float | None) -> tuple[bool, list[tuple[Ready, bool]]]:
        """Wait for a call or for sockets, so many seconds or for ever; tells whether there was a call, and what is to
        be done, with what it is to be told. A socket is told of once for what came, and to one thread."""

    def watch(self, socket: int, ready: Ready) -> None:
        """Begin to watch a socket, which may have something to read already. OSError where that is impossible,
        ValueError when this is closed."""

    def unwatch(self, socket: int) -> None:
        """Watch it no longer. It may be told of once more."""

    def close(self) -> None:
        """Give back what the system lent."""


def open_lookout() -> Lookout:
    """The one for this system."""
    return _Epoll() if hasattr(select, "epoll") and hasattr(os, "eventfd") else _Bench()


class _Epoll:
    """With Linux' epoll: threads that wait are woken one by one, the last that came first, whose caches are warm."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, select.EPOLLIN | select.EPOLLET)
        self._close_bell = finalize(self, os.close, self._bell)  # also where a thread hangs, and nobody closes this
        self._ready: dict[int, Ready] = {}

    @property
    def watched(self) -> Sequence[Ready]:
        return list(self._ready.values())

    def call(self) -> None:
        os.eventfd_write(self._bell, 1)

    def wait(self, seconds: float | None) -> tuple[bool, list[tuple[Ready, bool]]]:
        called, told = False, []
        for socket, events in self._epoll.poll(seconds, AT_ONCE):
            if socket == self._bell:
                called = True
            elif (ready := self._ready.get(socket)) is not None:
                told.append((ready, events != select.EPOLLIN))
        return called, told

    def watch(self, socket: int, ready: Ready) -> None:
        self._ready[socket] = ready
        try:
            self._epoll.register(socket, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
        except (OSError, ValueError):
            del self._ready[socket]
            raise

    def unwatch(self, socket: int) -> None:
        del self._ready[socket]
        self._epoll.unregister(socket)

    def close(self) -> None:
        self._epoll.close()
        self._close_bell()


class _Bench:
    """Without sockets, for other systems."""

    watched: Sequence[Ready] = ()

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: list[Lock] = []
        self._calls = 0

    def call(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.pop().release()
            else:
                self._calls += 1

    def wait(self, seconds: float | None) -> tuple[bool, list[tuple[Ready, bool]]]:
        mine = Lock()
        mine.acquire()
        with self._lock:
            if self._calls:
                self._calls -= 1
                return True, []
            if seconds == 0:
                return False, []
            self._waiting.append(mine)
        mine.acquire()
        return True, []

    def watch(self, socket: int, ready: Ready) -> None:
        raise OSError("sockets can't be watched on this system")

    def unwatch(self, socket: int) -> None:
        """There is none."""

    def close(self) -> None:
        """There is nothing to give back."""
