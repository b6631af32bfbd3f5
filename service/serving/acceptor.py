"""Taking connections. Of several processes at one socket, the one that has the fewest takes the next."""

import asyncio
import logging
import mmap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import socket
from time import monotonic_ns
from typing import Final

__all__ = ["Door", "Share"]

_log = logging.getLogger(__name__)
_AT_ONCE: Final = 64  # in one turn of the event loop; under load a turn is long, and hundreds may wait
_AFTER_YOU_S: Final = 0.001
_AFTER_YOU_TIMES: Final = 5
_HANGS_NS: Final = 1_000_000_000
_FULL_S: Final = 1.0
_SLACK: Final = 8
_BYTES: Final = 8  # of a number, of which there are two for each place
_NOBODY: Final = -1


class Share:
    """How many connections each of several processes has, and when it told so, in a file that all of them map; each has
    a `place` in it."""

    def __init__(self, file: Path, place: int) -> None:
        with file.open("r+b") as opened:
            self._cells = memoryview(mmap.mmap(opened.fileno(), 0)).cast("q")
        self._place = place

    @staticmethod
    def make(file: Path, places: int) -> None:
        """Make the file, with nobody in it."""
        file.write_bytes((_NOBODY.to_bytes(_BYTES, "little", signed=True) + bytes(_BYTES)) * places)

    def tell(self, count: int) -> None:
        """Say how many connections there are at this place."""
        self._cells[2 * self._place] = count
        self._cells[2 * self._place + 1] = monotonic_ns()  # the same clock in all processes

    def leave(self) -> None:
        """Say that nobody takes connections at this place."""
        self.tell(_NOBODY)

    def is_more(self, count: int) -> bool:
        """Whether someone else takes connections, and has fewer than so many, by an eighth at least. Who has told
        nothing for a second hangs, and takes none."""
        most = count - count // _SLACK
        heard_after = monotonic_ns() - _HANGS_NS
        places = zip(self._cells[::2], self._cells[1::2], strict=True)
        return any(
            _NOBODY < other < most and heard > heard_after
            for place, (other, heard) in enumerate(places)
            if place != self._place
        )


class Door:
    """Takes the connections of a listening socket into the running event loop.

    Who has more connections than another process lets it go first, for up to 5 ms, unless that one has told nothing
    for a second: it hangs, and should not cost every connection 5 ms. Otherwise whoever wakes first would take all that
    come together, and one process would do the work of all: connections are kept, and answered where they are. The
    number is told in time, but may be one too high for a moment.
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
        """Let the other processes know how many connections there are; to be called when one has ended, and now and
        then."""
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
            if self._share is not None and waited < _AFTER_YOU_TIMES and self._share.is_more(self.tell()):
                self._pause(_AFTER_YOU_S, waited + 1)
                return
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
