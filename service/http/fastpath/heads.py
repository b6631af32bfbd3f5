"""The heads of plain searches, read once: a client sends nearly the same ones again and again."""

from dataclasses import dataclass
from typing import Final

import httptools
from lightretriever.service.http.json import JSON

__all__ = ["PLAIN_PATH", "Heads", "PlainHead"]

PLAIN_PATH: Final = "/search"

_START: Final = b"POST /search HTTP/1.1\r\n"
_END: Final = b"\r\n\r\n"
_KEPT: Final = b"keep-alive"
_LONGEST: Final = 4096
_MOST: Final = 512
# What may change how a request is answered. `origin` comes from browsers, whose answers may need more headers.
_NOT_PLAIN: Final = {
    b"content-encoding",
    b"expect",
    b"origin",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
}


@dataclass(frozen=True, slots=True)
class PlainHead:
    """What is to be known of the head of a plain search: the bytes of the head itself and of its body, and two of its
    headers, "" where they are missing."""

    size: int
    length: int
    request_id: str
    authorization: str


class Heads:
    """Tells plain searches by their heads, whose bodies have up to `longest_body` bytes."""

    def __init__(self, longest_body: int) -> None:
        self._longest_body = longest_body
        self._known: dict[bytes, PlainHead | None] = {}

    def __len__(self) -> int:
        """Heads that are remembered."""
        return len(self._known)

    def find(self, data: bytes) -> PlainHead | None:
        """Give the head that `data` begins with, if it is all there, and that of a plain search."""
        if not data.startswith(_START):
            return None
        end = data.find(_END, 0, _LONGEST) + len(_END)
        return None if end < len(_END) else self._read(data[:end])

    def _read(self, data: bytes) -> PlainHead | None:
        try:
            return self._known[data]
        except KeyError:
            if len(self._known) >= _MOST:
                self._known.clear()
            head = self._known[data] = self._parsed(data)
            return head

    def _parsed(self, data: bytes) -> PlainHead | None:
        reader = _Reader()
        parser = httptools.HttpRequestParser(reader)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            return None
        headers = dict(reader.headers)
        declared, length = headers.get(b"content-type", b""), headers.get(b"content-length", b"")
        if (
            not reader.complete
            or len(headers) < len(reader.headers)
            or headers.keys() & _NOT_PLAIN
            or headers.get(b"connection", _KEPT).lower() != _KEPT
            or declared.partition(b";")[0].strip().lower() != JSON.encode()
            or not 0 < int(length or b"0") <= self._longest_body
        ):
            return None
        id_, key = (headers.get(name, b"").decode("latin-1") for name in (b"x-request-id", b"authorization"))
        return PlainHead(len(data), int(length), id_, key)


class _Reader:
    """What the parser tells."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True
