"""HTTP/1.1 on one connection: uvicorn's protocol over httptools, and what that lacks on a private network.

This is a time limit and a size for heads, a limit on open connections, strict framing, and one log line a second about
malformed requests. It overrides callbacks of `HttpToolsProtocol` that have no hook, and none of its private names.
"""

import asyncio
import logging
import resource
from time import perf_counter
from typing import ClassVar, Final, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_HEAD_BYTES: Final = 65_536  # also of trailers, and of a chunk's extensions
_LONG_HEAD: Final = f"The headers are longer than {_MAX_HEAD_BYTES} bytes."
_MAX_CONNECTIONS: Final = 10_000
_MAX_FILES: Final = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_LAST_CALL_S: Final = 0.25

_log = logging.getLogger(__name__)


class _Flow(FlowControl):
    """Reads on only when no request waits for its turn, however many a client pipelines."""

    def __init__(self, connection: "Connection") -> None:
        super().__init__(connection.transport)
        self._connection = connection

    def resume_reading(self) -> None:
        if not self._connection.pipeline:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """One connection. A request that can't be framed for certain (RFC 9112, 6.3) gets 400, or no answer behind another
    one that waits for its own, and nothing that follows it is read."""

    limit: ClassVar = min(_MAX_CONNECTIONS, _MAX_FILES * 3 // 4 if _MAX_FILES > 0 else _MAX_CONNECTIONS)
    """Connections that may be open: three quarters of the files. The bundle and a new one beside it need others."""
    _malformed: ClassVar[list[tuple[str, str]]] = []  # reasons and clients since the last line of the log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection. If there are too many, close the one that is idle for longest."""
        super().connection_made(transport)
        self.flow = _Flow(self)
        self._stalled_bytes, self._broken, self._stopping = 0, False, False
        self._active_at = perf_counter()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        if len(self.connections) > self.limit:
            idle = (other for other in cast("set[Connection]", self.connections) if not other._answering())
            longest = min(idle, key=lambda other: other._active_at)
            self.connections.discard(longest)  # at once: others may come in the same turn of the event loop
            longest.transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse what came. The time limit of an idle connection goes on until a head is complete."""
        self._stalled_bytes += len(data)
        while data and not self._broken:
            data = self._parsed(data)
        if self._stalled_bytes > _MAX_HEAD_BYTES and not self._broken:
            self._refuse(_LONG_HEAD)

    def _parsed(self, data: bytes) -> bytes:
        """Parse, and return what is left: from a head that asks for another protocol on, without the wish."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            line = self.parser.get_method() + b" " + self.url + b" HTTP/" + self.parser.get_http_version().encode()
            headers = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
            return b"\r\n".join([line, *headers, b"", data[upgrade.args[0] :]])
        except httptools.HttpParserError as error:
            self._refuse(str(error.__context__ if isinstance(error.__context__, ValueError) else error))
        return b""

    def shutdown(self) -> None:
        """Close the connection with its next answer, or in a moment: a request may be on its way."""
        self._stopping = True
        if self._answering():
            super().shutdown()
        else:
            self.loop.call_later(_LAST_CALL_S, super().shutdown)

    def on_headers_complete(self) -> None:
        """Check the head, and begin to answer. ValueError says what is wrong with it."""
        self._stalled_bytes = 0
        self._check_head()
        if self.parser.should_upgrade():
            return
        self._active_at = perf_counter()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().on_headers_complete()
        self.headers = []  # for trailers, which nothing here means
        if self._stopping:
            self.cycle.keep_alive = False

    def _check_head(self) -> None:
        version, hosts = self.parser.get_http_version(), sum(name == b"host" for name, _ in self.headers)
        codings = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > _MAX_HEAD_BYTES:
            raise ValueError(_LONG_HEAD)  # it may have come in one read
        if version not in ("1.0", "1.1"):
            raise ValueError(f"HTTP/{version} is not spoken here, only HTTP/1.1 and HTTP/1.0.")
        if codings and (codings != [b"chunked"] or version == "1.0"):
            raise ValueError("Transfer-Encoding may only be chunked, once, and in HTTP/1.1.")
        if hosts > 1 or (not hosts and version == "1.1"):
            raise ValueError(f"A request has one Host, this one has {hosts}.")
        if self.parser.get_method() == b"CONNECT" or httptools.parse_url(self.url).path is None:
            raise ValueError("The address of a request is a path.")

    def on_body(self, body: bytes) -> None:
        """Take a part of a body."""
        self._stalled_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has come in full."""
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, reason: str) -> None:
        """Parse no more. Answer 400, unless another answer is on its way, which is the last one then."""
        self._broken = True
        if not self._malformed:
            self.loop.call_later(1.0, self.log_malformed)
        self._malformed.append((reason, self.client[0] if self.client else ""))
        if self._answering() and not self.cycle.more_body:
            self.cycle.keep_alive = False
        elif self._answering() and (self.pipeline or self.cycle.response_started):
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
