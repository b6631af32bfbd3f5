"""HTTP/1.1 on one connection: uvicorn's protocol over httptools, with stricter framing and with bounds.

What a client sends is parsed piece by piece, and the next piece only when no parsed request waits for its turn: however
much a client pipelines, the server holds one read of the kernel's buffer and the requests of one piece.
"""

import asyncio
import logging
from typing import Any, Final, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["MOST_CHUNKS", "Connection", "Connections", "connection_class"]

MOST_CHUNKS: Final = 1000
"""Chunks of a body; each is parsed in the event loop."""
_PIECE_BYTES: Final = 4096
_MOST_HEAD_BYTES: Final = 65_536  # also of trailers, and of a chunk's extensions
_VERSIONS: Final = ("1.0", "1.1")

_log = logging.getLogger(__name__)


class Connections:
    """What the connections of a server share. `most` of them may be open at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.stopping = False
        self._open: set[Connection] = set()
        self._silent: dict[Connection, None] = {}  # the longest waiting first
        self._idle: dict[Connection, None] = {}
        self._malformed: list[str] = []  # reason and client of the last one
        self._malformed_count = 0

    def __len__(self) -> int:
        return len(self._open)

    def opened(self, connection: "Connection") -> None:
        """Count a connection. If there are too many, close the one that waits longest for a request, and first of those
        that never made one."""
        self._open.add(connection)
        self._silent[connection] = None
        if len(self._open) > self.most:
            longest = next(iter(self._silent if len(self._silent) > 1 else self._idle or self._silent))
            self.closed(longest)  # at once: others may come in the same turn of the event loop
            longest.close()

    def busy(self, connection: "Connection") -> None:
        """A request has come."""
        self._silent.pop(connection, None)
        self._idle.pop(connection, None)

    def idle(self, connection: "Connection") -> None:
        """All its requests are answered."""
        self._idle[connection] = None

    def closed(self, connection: "Connection") -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self.busy(connection)

    def stop(self) -> None:
        """Close each connection with its next answer. A signal's handler may call it."""
        self.stopping = True
        for connection in list(self._open):
            connection.stop()

    def malformed(self, reason: str, client: str) -> None:
        """Note a request that is no HTTP, for the next line of the log."""
        self._malformed = [reason, client]
        self._malformed_count += 1

    def tell(self) -> None:
        """Write one line about all malformed requests since the last one, if there were any."""
        if self._malformed_count:
            reason, client = self._malformed
            about = {"count": self._malformed_count, "last": reason, "client": client}
            self._malformed_count = 0
            _log.warning("malformed requests", extra=about)


class _Flow(FlowControl):
    """Reads on only when all that was read is parsed."""

    def __init__(self, transport: asyncio.Transport, unread: bytearray) -> None:
        super().__init__(transport)
        self._unread = unread

    def resume_reading(self) -> None:
        if not self._unread:
            super().resume_reading()


class _Joining(asyncio.Transport):
    """A transport that sends all that is written in one turn of the event loop together. uvicorn writes the head of an
    answer and then its body: apart, the client wakes up for the head alone."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written: list[bytes | bytearray | memoryview] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data at the end of this turn."""
        if not self._written:
            self._loop.call_soon(self.send)
        self._written.append(data)

    def close(self) -> None:
        """Send what was written, and close."""
        self.send()
        self._transport.close()

    def send(self) -> None:
        """Send what was written."""
        written, self._written = self._written, []
        if written and not self.is_closing():  # a client that left
            self._transport.writelines(written)


class Connection(HttpToolsProtocol):
    """One connection. It answers a client that has closed its own side after its request, as HTTP allows.

    A request that can't be framed for certain (RFC 9112, 6.3) gets 400, after the answers to those before it, and the
    connection is closed.
    """

    shared: Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection. Its first request has to come as soon as any other."""
        self._joining = _Joining(transport, self.loop)
        super().connection_made(self._joining)
        self._unread = bytearray()
        self._no_progress_bytes = 0
        self._progress = False
        self._in_head = False
        self._chunks = 0
        self._unanswered = 0
        self._ended = False
        self._broken: str | None = None
        """Why nothing that follows can be parsed."""
        self.flow = _Flow(transport, self._unread)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self.shared.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.shared.closed(self)
        self._unread.clear()
        self._disarm()
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection, which is idle."""
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks whether to keep the connection open
        """Keep the connection open for answers that are on their way."""
        self._joining.send()  # before the event loop closes the connection
        if self.transport.get_extra_info("sslcontext") is not None:
            return False  # TLS has no half-closed connections
        self._ended = True
        return self._unanswered > self._body_comes()

    def data_received(self, data: bytes) -> None:
        """Parse what came, or keep it until those before it are answered."""
        if self._broken is None:
            self._unread += data
            self._parse()

    def on_response_complete(self) -> None:
        """Begin with the next request, if it has come."""
        self._unanswered -= 1
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._broken is None:
            self._parse()
            self.flow.resume_reading()
        elif not self._unanswered:
            self.send_400_response(self._broken)
        if self._unanswered or self.transport.is_closing():
            return
        self.shared.idle(self)
        if self._ended:
            self.transport.close()

    def stop(self) -> None:
        """Say `Connection: close` in the next answer, if a request has come."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head, self._chunks = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; leave out trailers, which nothing here means."""
        if self._in_head:
            super().on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        """Check the head, and begin to answer. ValueError says what is wrong with it."""
        self._in_head, self._progress = False, True
        self._check_head()
        if self.parser.should_upgrade():
            return  # what it asks for is not offered: it is parsed again without
        if self.url[:1] != b"/":
            self._shorten_address()
        self._disarm()
        self.shared.busy(self)
        self._unanswered += 1
        super().on_headers_complete()
        if self.shared.stopping:
            self.stop()

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._progress = True
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Count a chunk. ValueError if there are too many."""
        self._chunks += 1
        if self._chunks > MOST_CHUNKS:
            raise ValueError(f"A body has at most {MOST_CHUNKS} chunks; send fewer and larger ones.")

    def on_message_complete(self) -> None:
        """A request has come in full."""
        self._progress = True
        if not self.parser.should_upgrade():
            super().on_message_complete()
            self.cycle.more_body = False  # also where the answer was there before the body

    def _check_head(self) -> None:
        version, codings, hosts = self.parser.get_http_version(), [], 0
        for name, value in self.headers:
            if name == b"transfer-encoding":
                codings.append(value.lower())
            elif name == b"host":
                hosts += 1
        if version not in _VERSIONS:
            raise ValueError(f"HTTP/{version} is not spoken here, only HTTP/1.1 and HTTP/1.0.")
        if codings and (codings != [b"chunked"] or version == "1.0"):
            raise ValueError("Transfer-Encoding may only be chunked, once, and in HTTP/1.1.")
        if hosts > 1 or (not hosts and version == "1.1"):
            raise ValueError(f"A request has one Host, this one has {hosts}.")
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("CONNECT is for proxies.")

    def _shorten_address(self) -> None:
        """Leave path and query of a whole address (RFC 9112, 3.2.2), whose path may be empty. ValueError for none."""
        try:
            address = httptools.parse_url(self.url)
        except httptools.HttpParserInvalidURLError as error:
            raise ValueError("The address of the request can't be read.") from error
        self.url = (address.path or b"/") + (b"" if address.query is None else b"?" + address.query)

    def _parse(self) -> None:
        """Parse piece by piece, until a request waits behind another."""
        while self._unread and not (self.pipeline or self.transport.is_closing()):
            piece = bytes(self._unread[:_PIECE_BYTES])
            del self._unread[:_PIECE_BYTES]
            self._progress = False
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                self._unread[:0] = self._without_upgrade() + piece[cast("int", upgrade.args[0]) :]
            except httptools.HttpParserError as error:
                self._refuse(str(error.__context__ if isinstance(error.__context__, ValueError) else error))
                return
            self._no_progress_bytes = 0 if self._progress else self._no_progress_bytes + len(piece)
            if self._no_progress_bytes > _MOST_HEAD_BYTES:
                self._refuse(f"The headers are longer than {_MOST_HEAD_BYTES} bytes.")
                return
        if self._unread:
            self.flow.pause_reading()

    def _without_upgrade(self) -> bytes:
        """The head that was parsed, without its wish for another protocol."""
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _refuse(self, reason: str) -> None:
        """Parse no more. Answer 400 when those before are answered, or close where the answer has begun."""
        self._broken = reason
        self._unread.clear()
        self.shared.malformed(reason, self.client[0] if self.client else "")
        if self._unanswered > self._body_comes():
            self.flow.pause_reading()
            if self._body_comes():
                self.cycle.more_body = False
                self.pipeline.popleft()  # the last one, which will never be complete
                self._unanswered -= 1
        elif self.cycle is not None and self.cycle.more_body and self.cycle.response_started:
            self.transport.close()
        else:
            self.send_400_response(reason)

    def _body_comes(self) -> bool:
        """Whether the last request that is not answered lacks a part of its body."""
        return self._unanswered > 0 and self.cycle.more_body

    def _disarm(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None


def connection_class(shared: Connections) -> type[Connection]:
    """The class of connections that share these bounds."""

    class Shared(Connection):
        pass

    Shared.shared = shared
    return Shared
