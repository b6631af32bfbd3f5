"""Taking connections. Of several processes at one socket, the one that has the fewest takes the next."""

import asyncio
import logging
import mmap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Final

__all__ = ["Door", "Share"]

_log = logging.getLogger(__name__)
_AT_ONCE: Final = 64  # in one turn of the event loop; under load a turn is long, and hundreds may wait
_AFTER_YOU_S: Final = 0.001
_AFTER_YOU_TIMES: Final = 5
_IN_VAIN_TIMES: Final = 20
_FULL_S: Final = 1.0
_SLACK: Final = 8
_BYTES: Final = 8
_NOBODY: Final = -1


class Share:
    """How many connections each of several processes has, in a file that all of them map; each has a `place` in it."""

    def __init__(self, file: Path, place: int) -> None:
        with file.open("r+b") as opened:
            self._counts = memoryview(mmap.mmap(opened.fileno(), 0)).cast("q")
        self._place = place

    @staticmethod
    def make(file: Path, places: int) -> None:
        """Make the file, with nobody in it."""
        file.write_bytes(_NOBODY.to_bytes(_BYTES, "little", signed=True) * places)

    def tell(self, count: int) -> None:
        """Say how many connections there are at this place."""
        self._counts[self._place] = count

    def leave(self) -> None:
        """Say that nobody takes connections at this place."""
        self.tell(_NOBODY)

    def is_more(self, count: int) -> bool:
        """Whether someone else takes connections, and has fewer than so many, by an eighth at least."""
        most = count - count // _SLACK
        return any(_NOBODY < other < most for other in self.others())

    def others(self) -> list[int]:
        """How many connections there are at the other places."""
        return [count for place, count in enumerate(self._counts) if place != self._place]


class Door:
    """Takes the connections of a listening socket into the running event loop.

    Who has more connections than another process lets it go first, for up to 5 ms, and no more at all when that was in
    vain for twenty connections, until the others' numbers change: one that hangs should not cost each of them 5 ms.
    Otherwise whoever wakes first would take all that come together, and one process would do the work of all:
    connections are kept, and answered where they are. The number is told in time, but may be one too high for a moment.
    """

    def __init__(
        self,
        listener: socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        count: Callable[[], int],
        share: Share | None = None,
    ) -> None:
        """`count` tells how many connections have begun and not ended; `listener` must not block."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._protocol = protocol
        self._count = count
        self._share = share
        self._beginning: set[asyncio.Task[object]] = set()
        self._later: asyncio.TimerHandle | None = None
        self._others: list[int] = []
        self._in_vain = 0  # connections for which the others, as they are now, were waited for
        self._closed = False
        self._watch()

    async def close(self) -> None:
        """Take no more connections; those that were taken have begun. The socket stays the caller's."""
        self._closed = True
        self._loop.remove_reader(self._listener)
        if self._later is not None:
            self._later.cancel()
        if self._share is not None:
            self._share.leave()
        if self._beginning:
            await asyncio.wait(self._beginning)

    def tell(self) -> int:
        """Let the other processes know how many connections there are; to be called when one has ended, too."""
        count = self._count() + len(self._beginning)
        if self._share is not None and not self._closed:
            self._share.tell(count)
        return count

    def _watch(self, waited: int = 0) -> None:
        self._later = None
        self.tell()
        self._loop.add_reader(self._listener, self._take, waited)

    def _take(self, waited: int) -> None:
        """Take what has come, as long as no other process should; one connection, if they had their time."""
        waits = waited > 0
        for _ in range(_AT_ONCE):
            if self._share is not None and waited < _AFTER_YOU_TIMES and self._lets_others(self._share):
                self._pause(_AFTER_YOU_S, waited + 1)
                return
            self._in_vain += waited == _AFTER_YOU_TIMES
            waited = 0
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                _log.error("no connection can be taken", extra={"reason": error.strerror})
                self._pause(_FULL_S)
                return
            self._begin(connection)
        self.tell()
        if waits:
            self._watch()

    def _lets_others(self, share: Share) -> bool:
        """Whether another process should take the next connection."""
        if not share.is_more(self.tell()):
            return False
        others = share.others()
        if others != self._others:
            self._others, self._in_vain = others, 0
        return self._in_vain < _IN_VAIN_TIMES

    def _begin(self, connection: socket) -> None:
        connection.setblocking(False)
        task: asyncio.Task[object] = self._loop.create_task(
            self._loop.connect_accepted_socket(self._protocol, connection)
        )
        self._beginning.add(task)
        task.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[object]) -> None:
        self._beginning.discard(task)
        self.tell()
        with suppress(asyncio.CancelledError, OSError):  # a client that has left already
            task.result()

    def _pause(self, seconds: float, waited: int = 0) -> None:
        self._loop.remove_reader(self._listener)
        self._later = self._loop.call_later(seconds, self._watch, waited)
