"""A kept-alive HTTP/1.1 connection that sends prepared bytes, which costs less than the service that is measured."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import orjson

from lightretriever.artifacts.errors import LightRetrieverError

_MAX_HEAD = 1 << 16


class LoadError(LightRetrieverError):
    """A load test can't be made as asked."""


def address(url: str) -> tuple[str, int]:
    """Return host and port of `http://HOST:PORT`. Raise LoadError for anything else."""
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError as error:
        raise LoadError(f"The address {url!r} can't be used: {error}.") from error
    if parts.scheme != "http" or not parts.hostname:
        raise LoadError(f"The address {url!r} can't be used.", remedy="Give one like http://127.0.0.1:8080.")
    return parts.hostname, port


def search_requests(url: str, queries: Iterable[str], fields: Mapping[str, Any]) -> list[bytes]:
    """Return a `POST /search` for every query, its JSON with the other `fields`. Raise LoadError for a bad address."""
    host, port = address(url)
    head = f"POST /search HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    bodies = [orjson.dumps({"query": query, **fields}) for query in queries]
    return [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]


@dataclass(frozen=True, slots=True)
class Response:
    """An answer; header names are in lower case."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Connection:
    """A connection for one request at a time. `answers` counts them; `idle_since` is for its owner."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.answers = 0
        self.idle_since = 0.0
        self.is_open = True

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Connect. Raise OSError."""
        return cls(*await asyncio.open_connection(host, port, limit=_MAX_HEAD))

    async def send(self, request: bytes) -> Response:
        """Send a request and return its answer. Raise OSError or EOFError if the connection breaks, ValueError if the
        answer is not HTTP/1.1; the connection is closed then."""
        answered = False
        try:
            self._writer.write(request)
            head = await self._reader.readuntil(b"\r\n\r\n")
            first, *lines = head[:-4].split(b"\r\n")
            if not first.startswith(b"HTTP/1."):
                raise ValueError(f"no answer of HTTP/1.1: {first[:80]!r}")
            pairs = (line.partition(b":") for line in lines)
            headers = {name.lower(): value.strip() for name, _, value in pairs}
            body = await self._reader.readexactly(int(headers.get(b"content-length", 0)))
            answered = headers.get(b"connection", b"").lower() != b"close"
            self.answers += 1
            return Response(int(first.split(b" ", 2)[1]), headers, body)
        except asyncio.LimitOverrunError as error:
            raise ValueError("the head of the answer is too long") from error
        finally:
            if not answered:
                self.close()

    def at_eof(self) -> bool:
        """True if the server has closed the idle connection."""
        return self._reader.at_eof()

    def close(self) -> None:
        """Abort the connection. Idempotent."""
        self.is_open = False
        self._writer.transport.abort()
