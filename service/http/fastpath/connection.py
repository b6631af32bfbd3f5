"""A client's connection: uvicorn's, and a shorter way for plain searches."""

import os
from asyncio import TimerHandle
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from time import monotonic, perf_counter
from typing import Any, Final

from lightretriever.service.execution.crew import Crew
from lightretriever.service.http.fastpath.flight import Answer, Flight, message_of
from lightretriever.service.http.fastpath.heads import PlainHead
from lightretriever.service.http.fastpath.protocol import Protocol
from lightretriever.service.http.fastpath.shortcut import Shortcut
from uvicorn import Config
from uvicorn.server import ServerState

__all__ = ["Connection"]

_PATIENCE_S: Final = 0.02
_LONGEST: Final = 65_536  # bytes of a whole request


class Connection(Protocol):
    """A plain search is begun as soon as its bytes are here, and the thread that ends it writes the answer to the
    socket itself: the event loop is not woken for it. Everything else is uvicorn's.

    Of a connection that goes on with plain searches, the threads that work on them read the next one themselves: the
    engine's crew watches it from its second search on, and the event loop has no part in it any more. When something
    else comes, or the client leaves, it is given back.

    One thread at a time writes to the socket, that of a plain search or the event loop; and one reads it, the event
    loop or who has the lock. uvloop and asyncio close it after `connection_lost`, or with the loop, before which a
    server abandons its connections: both take it away from other threads first.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        shortcut: Shortcut,
        ended: Callable[[], object],
    ) -> None:
        """`ended` is called when the connection has."""
        super().__init__(config, server_state, app_state)
        self._shortcut = shortcut
        self._ended = ended
        self._lock = Lock()
        self._flight: Flight | None = None
        self._held = b""  # what came meanwhile
        self._begun = b""  # what came of the next one,
        self._came = 0.0  # when it began to come,
        self._patience: TimerHandle | None = None  # and until when the rest is waited for
        self._ending = False
        self._answered = 0.0
        self._socket = -1
        self._crew: Crew | None = None  # that watches it
        self._watchable = False
        self._given_back = False  # and not yet taken by the event loop

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        super().connection_made(transport)
        self._socket = transport.get_extra_info("socket").fileno()

    def connection_lost(self, exc: Exception | None) -> None:
        """End, and drop the search under way."""
        self._let_fly()
        self._unset_patience()
        super().connection_lost(exc)
        self._ended()

    def data_received(self, data: bytes) -> None:
        """Begin a plain search, or let uvicorn have the bytes; those that come before an answer has to wait."""
        with self._lock:
            busy = self._flight is not None
            if busy:
                self._held += data
        if busy:
            self.flow.pause_reading()
        elif self._shortcut.open and self._is_free():
            self._read(self._begun + data)
        else:
            super().data_received(data)

    def shutdown(self) -> None:
        """Close when the request under way is answered."""
        if self._begun:
            self._let_go()
        with self._lock:
            self._ending = True
            self._retire()
            busy = self._flight is not None or self._given_back
        if not busy:
            super().shutdown()

    def abandon(self) -> None:
        """End now, whatever is under way: the event loop will be closed, and the socket with it."""
        self._let_fly()
        self.transport.abort()

    def timeout_keep_alive_handler(self) -> None:
        """Close if nothing came for long. Plain searches don't set the timer anew, which would be a part of their cost:
        it looks when the last one was answered."""
        with self._lock:
            busy = self._flight is not None or self._begun or self._given_back
            wait = self.timeout_keep_alive if busy else self._answered + self.timeout_keep_alive - monotonic()
            if wait <= 0:
                self._retire()
                wait = self.timeout_keep_alive if self._given_back else wait
        if wait > 0:
            self._look_later(wait)
        else:
            super().timeout_keep_alive_handler()

    def _let_fly(self) -> None:
        """Take the socket away from all threads, and drop the search under way."""
        with self._lock:
            flight, self._flight = self._flight, None
            self._unwatch()
            self._socket = -1
        if flight is not None:
            flight.cancel()

    def _unwatch(self) -> None:
        """Have no thread read it any more. The lock must be held."""
        if self._crew is not None:
            self._crew.unwatch(self._socket)
            self._crew = None

    def _retire(self) -> None:
        """Have no thread read it any more: it is to be closed, but what has come is answered. The lock must be held."""
        if self._crew is None or self._flight is not None:
            self._unwatch()
            return
        try:
            self._give_back(os.read(self._socket, _LONGEST))
        except BlockingIOError:
            self._unwatch()
        except OSError:
            self._give_back(b"")

    def _watch(self) -> None:
        """In the event loop: let the threads read it from now on."""
        with self._lock:
            busy = self._flight is not None or self._given_back or self._begun or not self._is_free()
            if busy or self._crew is not None or self._ending or not self._watchable:
                return
            self.flow.pause_reading()
            self._crew = self._shortcut.desk.serving.current.engine.crew
            try:
                self._crew.watch(self._socket, self._ready)
            except (OSError, ValueError) as error:  # of which the latter says that this crew has ended
                self._crew, self._shortcut.watching = None, isinstance(error, ValueError)
                self.flow.resume_reading()

    def _ready(self, left: bool) -> None:
        """In a thread of the crew: begin what came, if it is a plain search."""
        with self._lock:
            if self._crew is None:
                return
            if left or self._flight is not None:
                self._give_back(b"")
                return
            try:
                data = os.read(self._socket, _LONGEST)
            except BlockingIOError:
                return
            except OSError:
                data = b""  # the event loop will see
            head = self._shortcut.heads.find(data)
            if head is None or head.size + head.length != len(data) or len(data) == _LONGEST:
                self._give_back(data)
                return
            self._flight = flight = Flight(self._shortcut.desk, head, self._land)
        flight.begin(head, data[head.size :])

    def _give_back(self, data: bytes) -> None:
        """Let the event loop have the connection again, and what was read. The lock must be held."""
        self._unwatch()
        self._watchable = False
        self._given_back = True
        with suppress(RuntimeError):  # the loop was closed, and the connection with it
            self.loop.call_soon_threadsafe(self._take_back, data)

    def _take_back(self, data: bytes) -> None:
        with self._lock:
            self._given_back, ending = False, self._ending
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if data:
            self.data_received(data)
        if ending:
            self.shutdown()

    def _read(self, data: bytes) -> None:
        """Read what begins a request. Many clients send the body after the head, which is waited for, for a moment."""
        head = self._shortcut.heads.find(data)
        missing = -1 if head is None else head.size + head.length - len(data)
        if missing > 0 and len(data) + missing <= _LONGEST:
            self._begun = data
            if self._patience is None:
                self._came = perf_counter()
                self._patience = self.loop.call_later(_PATIENCE_S, self._let_go)
            return
        came = None if self._patience is None else self._came
        self._unset_patience()
        if head is None or missing:
            super().data_received(data)
        else:
            self._begin(head, data[head.size :], came)

    def _let_go(self) -> None:
        """Let uvicorn have what began a request, which knows how long to wait for the rest."""
        data = self._begun
        self._unset_patience()
        super().data_received(data)

    def _unset_patience(self) -> None:
        self._begun = b""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _begin(self, head: PlainHead, body: bytes, came: float | None) -> None:
        # One search may be the only one; and who sends a search in parts would be given back each time.
        self._watchable = self._shortcut.watching and came is None and self._answered > 0
        self._flight = flight = Flight(self._shortcut.desk, head, self._land, came)
        flight.begin(head, body)

    def _land(self, flight: Flight, answer: Answer) -> None:
        """Write an answer, in any thread. The event loop is woken only if there is more to do."""
        message = message_of(answer, self.server_state.default_headers, closes=self._ending)
        with self._lock:
            if self._flight is not flight:
                return
            sent = self._send(message)
            if sent == len(message) and not self._held and not self._ending:
                self._answered = monotonic()
                self._flight = None
                if self._watchable and self._crew is None:
                    self.loop.call_soon_threadsafe(self._watch)
                return
        with suppress(RuntimeError):  # the loop was closed, and the connection with it
            self.loop.call_soon_threadsafe(self._go_on, message[sent:])

    def _send(self, message: bytes) -> int:
        """Send as much as the socket takes; how much that was. A connection that takes nothing any more is cut."""
        try:
            return os.write(self._socket, message)
        except BlockingIOError:
            return 0
        except OSError:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self.transport.abort)
            return len(message)

    def _go_on(self, rest: bytes) -> None:
        """In the event loop again: write what is left, and close the connection, or take what came meanwhile."""
        with self._lock:
            if self._flight is None:
                return
            self._flight = None
            self._unwatch()  # the event loop reads again
            held, self._held = self._held, b""
        self._answered = monotonic()
        if rest:
            self.transport.write(rest)
        if self._ending:
            self.transport.close()
            return
        self.flow.resume_reading()
        if held:
            self.data_received(held)
