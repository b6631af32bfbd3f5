"""HTTP/1.1 on one connection: uvicorn's protocol over httptools, and what that lacks on a private network.

This is a time limit for heads, a limit on open connections, strict framing, and one log line a second about malformed
requests. It overrides callbacks of `HttpToolsProtocol` that have no hook, and none of its private names.

What a client sends is parsed piece by piece, and the next piece only when no parsed request waits for its turn: however
much a client pipelines, the server holds one read of the kernel's buffer and the requests of one piece.
"""

import asyncio
import logging
import resource
from typing import Any, ClassVar, Final, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["MAX_CHUNKS", "Connection", "max_connections"]

MAX_CHUNKS: Final = 1000
"""Chunks of a body; each is parsed in the event loop."""
_PIECE_BYTES: Final = 4096
_MAX_HEAD_BYTES: Final = 65_536  # also of trailers, and of a chunk's extensions
_MAX_CONNECTIONS: Final = 10_000
_LAST_CALL_S: Final = 0.25

_log = logging.getLogger(__name__)


def max_connections(files: int) -> int:
    """Return how many connections may be open in a process that may have `files` open; -1: any number."""
    return _MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(_MAX_CONNECTIONS, files * 3 // 4)


class _Flow(FlowControl):
    """Reads on only when all that was read is parsed."""

    def __init__(self, transport: asyncio.Transport, unread: bytearray) -> None:
        super().__init__(transport)
        self._unread = unread

    def resume_reading(self) -> None:
        if not self._unread:
            super().resume_reading()


class _Joining:
    """A transport that sends together what is written in one turn of the event loop. uvicorn writes the head of an
    answer and then its body: apart, the client wakes up for the head alone."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self.send)
        self._written.append(data)

    def close(self) -> None:
        self.send()
        self._transport.close()

    def send(self) -> None:
        written, self._written = self._written, []
        if written and not self._transport.is_closing():
            self._transport.writelines(written)


class Connection(HttpToolsProtocol):
    """One connection. It answers a client that has closed its own side after its request, as HTTP allows.

    A request that can't be framed for certain (RFC 9112, 6.3) gets 400, after the answers to those before it, and the
    connection is closed.
    """

    most: ClassVar = max_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    """Connections that may be open: three quarters of the files. The bundle and a new one beside it need others."""
    _waiting: ClassVar[dict["Connection", None]] = {}  # for a request, the longest waiting first
    _malformed: ClassVar[list[tuple[str, str]]] = []  # reasons and clients since the last line of the log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection. If there are too many, close the one that waits longest for a request."""
        joining = cast(asyncio.Transport, _Joining(transport, self.loop))
        super().connection_made(joining)
        self._unread = bytearray()
        self._stalled_bytes = self._chunks = self._unanswered = 0
        self._progress = self._in_head = self._ended = self._stopping = False
        self._broken: str | None = None
        """Why nothing that follows can be parsed."""
        self.flow = _Flow(joining, self._unread)
        self._wait()
        if len(self.connections) > self.most:
            longest = next(iter(self._waiting))
            longest.connections.discard(longest)  # at once: others may come in the same turn of the event loop
            longest._busy()
            longest.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._busy()
        self._unread.clear()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio asks whether to keep the connection open
        """Keep the connection open for answers that are on their way, but for TLS, which has no half-closed ones."""
        self._ended = True
        cast(_Joining, self.transport).send()  # before the event loop closes the connection
        return self.scheme == "http" and self._unanswered > self._body_comes()

    def data_received(self, data: bytes) -> None:
        """Parse what came, or keep it until those before it are answered."""
        if self._broken is None:
            self._unread += data
            self._parse()

    def shutdown(self) -> None:
        """Close the connection with its next answer, or in a moment: a request may be on its way."""
        self._stopping = True
        if self._unanswered:
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(_LAST_CALL_S, super().shutdown)

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
        if not self._unanswered and self._ended:
            self.transport.close()
        elif not self._unanswered:
            self._wait()

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
            return  # what it asks for is not offered: the head is parsed again without
        self._busy()
        self._unanswered += 1
        super().on_headers_complete()
        if self._stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._progress = True
        super().on_body(body)

    def on_chunk_header(self) -> None:
        """Count a chunk. ValueError if there are too many."""
        self._chunks += 1
        if self._chunks > MAX_CHUNKS:
            raise ValueError(f"A body has at most {MAX_CHUNKS} chunks; send fewer and larger ones.")

    def on_message_complete(self) -> None:
        """A request has come in full."""
        self._progress = True
        if not self.parser.should_upgrade():
            super().on_message_complete()
            self.cycle.more_body = False  # also where the answer was there before the body

    def _check_head(self) -> None:
        version = self.parser.get_http_version()
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        hosts = sum(name == b"host" for name, _ in self.headers)
        if version not in ("1.0", "1.1"):
            raise ValueError(f"HTTP/{version} is not spoken here, only HTTP/1.1 and HTTP/1.0.")
        if codings and (codings != [b"chunked"] or version == "1.0"):
            raise ValueError("Transfer-Encoding may only be chunked, once, and in HTTP/1.1.")
        if hosts > 1 or (not hosts and version == "1.1"):
            raise ValueError(f"A request has one Host, this one has {hosts}.")
        if self.parser.get_method() == b"CONNECT" or httptools.parse_url(self.url).path is None:
            raise ValueError("The address of a request is a path.")

    def _plain_head(self) -> bytes:
        """Return the head that was parsed, without its wish for another protocol."""
        line = self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()
        headers = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([line, *headers]) + b"\r\n\r\n"

    def _parse(self) -> None:
        """Parse piece by piece, until a request waits behind another."""
        while self._unread and not (self.pipeline or self.transport.is_closing()):
            piece = bytes(self._unread[:_PIECE_BYTES])
            del self._unread[:_PIECE_BYTES]
            self._progress = False
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                self._unread[:0] = self._plain_head() + piece[int(upgrade.args[0]) :]
            except httptools.HttpParserError as error:
                self._refuse(str(error.__context__ if isinstance(error.__context__, ValueError) else error))
                return
            self._stalled_bytes = 0 if self._progress else self._stalled_bytes + len(piece)
            if self._stalled_bytes > _MAX_HEAD_BYTES:
                self._refuse(f"The headers are longer than {_MAX_HEAD_BYTES} bytes.")
                return
        if self._unread:
            self.flow.pause_reading()

    def _refuse(self, reason: str) -> None:
        """Parse no more. Answer 400 when those before are answered, or close where the answer has begun."""
        self._broken = reason
        self._unread.clear()
        if not self._malformed:
            self.loop.call_later(1.0, self.log_malformed)
        self._malformed.append((reason, self.client[0] if self.client else ""))
        if self._unanswered > self._body_comes():
            self.flow.pause_reading()
            if self._body_comes():
                self.cycle.more_body = False
                self.pipeline.popleft()  # the last one, which will never be complete
                self._unanswered -= 1
        elif self._body_comes() and self.cycle.response_started:
            self.transport.close()
        else:
            self.send_400_response(reason)

    @classmethod
    def log_malformed(cls) -> None:
        """Write one line about all malformed requests since the last one, if there were any."""
        if cls._malformed:
            reason, client = cls._malformed[-1]
            _log.warning("malformed requests", extra={"count": len(cls._malformed), "last": reason, "client": client})
            cls._malformed.clear()

    def _body_comes(self) -> bool:
        """True if the last request that is not answered lacks a part of its body."""
        return self._unanswered > 0 and self.cycle.more_body

    def _wait(self) -> None:
        """Wait for the next head, for as long as a connection is kept."""
        self._waiting[self] = None
        self._limit = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _busy(self) -> None:
        if self in self._waiting:
            del self._waiting[self]
            self._limit.cancel()
