"""The client's side of HTTP/1.1, as cheap as Python allows: one request at a time on a connection that is kept.

Load generators built on a general client cost more per request than the service that they are to load. Here a request
is bytes made beforehand, and its answer is a status and a body, handed to a function. No task is started for it.
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
    """Where requests go: `http://HOST:PORT`, what follows is the path."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> "Target":
        """Parse an address. Raises LoadError for anything but http:// with a host and maybe a port."""
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError as error:
            raise LoadError(f"The address {url!r} can't be used: {error}.") from error
        if parts.scheme != "http" or not parts.hostname:
            raise LoadError(f"The address {url!r} can't be used.", remedy="Give one like http://127.0.0.1:8080.")
        return cls(parts.hostname, port)


def search_requests(url: str, queries: Iterable[str], k: int = 10) -> list[bytes]:
    """`POST /search` with a JSON body for every query, as the service and the servers in `loadtest.servers` take it.
    Raises LoadError for a bad address."""
    target = Target.of(url)
    head = f"POST /search HTTP/1.1\r\nHost: {target.host}:{target.port}\r\nContent-Type: application/json\r\n"
    bodies = [orjson.dumps({"query": query, "k": k}) for query in queries]
    return [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]


class Owner(Protocol):
    """Who is told what becomes of connections and requests."""

    def idle(self, connection: "Connection") -> None:
        """The connection is open and has nothing to do."""

    def answered(self, ticket: Ticket, status: int, body: bytes) -> None:
        """An answer is complete."""

    def lost(self, connection: "Connection", ticket: Ticket | None) -> None:
        """The connection is gone, with the request that waited on it, if one did."""


class Connection(asyncio.Protocol):
    """A connection that is kept as long as the server keeps it."""

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
        """Say that there is work to be done."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's don't say so
        self._owner.idle(self)

    def send(self, ticket: Ticket, request: bytes) -> None:
        """Write a request; the connection must be idle."""
        if self._transport is None:
            raise RuntimeError("the connection is not open")
        self.ticket = ticket
        ticket.sent = perf_counter()
        self._transport.write(request)

    def close(self) -> None:
        """Cut the connection, whatever it waits for; the owner is not told."""
        self.ticket = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a part of an answer."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if self.ticket is not None:
                self.ticket.repeated = True  # it would be no better a second time
            if self._transport is not None:
                self._transport.abort()
            return
        if self._complete:
            self._finish()

    def on_headers_complete(self) -> None:
        """Note whether the server keeps the connection; later the parser has forgotten it."""
        self._keep = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """Keep a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Note that the answer is whole."""
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
