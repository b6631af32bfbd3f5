"""A minimal HTTP/1.1 client: one request at a time on a kept-alive connection.

Load generators built on a general client cost more per request than the service under load. Here a request is bytes
prepared in advance, and its answer is a status and a body, passed to a function. No task is started for it.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol, cast
from urllib.parse import urlsplit

import httptools
import orjson

from lightretriever.artifacts.errors import LightRetrieverError

__all__ = ["Connection", "LoadError", "Owner", "Target", "Ticket", "search_requests"]


class LoadError(LightRetrieverError):
    """A load test can't be made as asked."""


@dataclass(slots=True)
class Ticket:
    """One request: when it was due and when it was written to a connection, in `perf_counter` seconds."""

    number: int
    due: float
    sent: float = 0.0
    repeated: bool = False


@dataclass(frozen=True)
class Target:
    """The address that requests go to: `http://HOST:PORT`, without a path."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Target":
        """Parse an address. Raises LoadError for anything but http:// with a host and an optional port."""
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError as error:
            raise LoadError(f"The address {url!r} can't be used: {error}.") from error
        if parts.scheme != "http" or not parts.hostname:
            raise LoadError(f"The address {url!r} can't be used.", remedy="Give one like http://127.0.0.1:8080.")
        return cls(parts.hostname, port)


def search_requests(url: str, queries: Iterable[str], k: int = 10) -> list[bytes]:
    """Make a `POST /search` with a JSON body for every query, for the service and the servers in `research.servers`.
    Raises LoadError for a bad address."""
    target = Target.of(url)
    head = f"POST /search HTTP/1.1\r\nHost: {target.host}:{target.port}\r\nContent-Type: application/json\r\n"
    bodies = [orjson.dumps({"query": query, "k": k}) for query in queries]
    return [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]


class Owner(Protocol):
    """Receives the events of connections and requests."""

    def idle(self, connection: "Connection") -> None:
        """The connection is open and idle."""

    def answered(self, ticket: Ticket, status: int, body: bytes) -> None:
        """An answer is complete."""

    def lost(self, connection: "Connection", ticket: Ticket | None) -> None:
        """The connection is closed, with its waiting request, if any."""


class Connection(asyncio.Protocol):
    """A connection that stays open until the server closes it."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._complete = False
        self._keep = True
        self.ticket: Ticket | None = None
        self.answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection as idle."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not declared as such
        self._owner.idle(self)

    def send(self, ticket: Ticket, request: bytes) -> None:
        """Write a request; the connection must be idle."""
        if self._transport is None:
            raise RuntimeError("the connection is not open")
        self.ticket = ticket
        ticket.sent = perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        """Abort the connection without telling the owner of its request."""
        self.ticket = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse a part of an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self.ticket is not None:
                self.ticket.repeated = True  # repeating would not help
            if self._transport is not None:
                self._transport.abort()
            return
        if self._complete:
            self._finish()

    def on_headers_complete(self) -> None:
        """Note whether the server keeps the connection; the parser forgets it later."""
        self._keep = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Note that the answer is complete."""
        self._complete = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner."""
        ticket, self.ticket, self._transport = self.ticket, None, None
        self._owner.lost(self, ticket)

    def _finish(self) -> None:
        ticket, body, status = self.ticket, b"".join(self._body), self._parser.get_status_code()
        self._parser = httptools.HttpResponseParser(self)
        self._body, self._complete, self.ticket = [], False, None
        self.answers += 1
        if ticket is not None:
            self._owner.answered(ticket, status, body)
        if self._transport is None:
            return
        if self._keep:
            self._owner.idle(self)
        else:
            self._transport.close()
