"""Packing by gzip: whether an answer may be packed, and bodies of requests that are."""

import re
import zlib
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lightretriever.service.errors import BodyTooLargeError, InvalidBodyError, MediaTypeError

__all__ = ["GZIP", "IDENTITY", "AcceptedEncoding", "accepts_gzip", "content_encoding", "too_large", "unpacked"]

GZIP: Final = "gzip"
IDENTITY: Final = "identity"
_NAMES: Final = {"gzip": GZIP, "x-gzip": GZIP, "identity": IDENTITY}  # RFC 9110, 8.4.1.3
_WEIGHT: Final = re.compile(r"\s*[qQ]=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)\s*")
_ACCEPT: Final = b"accept-encoding"


class AcceptedEncoding:
    """ASGI middleware that reads `Accept-Encoding` for the one behind it, which only looks for the letters `gzip`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http":
            asked = ",".join(Headers(scope=scope).getlist("accept-encoding"))
            others = [header for header in scope["headers"] if header[0] != _ACCEPT]
            chosen = GZIP if accepts_gzip(asked) else IDENTITY
            # In place: the router notes the route there, for the metrics and the log.
            scope["headers"] = [*others, (_ACCEPT, chosen.encode())]
        await self._app(scope, receive, send)


def accepts_gzip(header: str) -> bool:
    """True if a client takes gzip by its `Accept-Encoding` (RFC 9110, 12.5.3): named with a weight above 0, or else
    meant by `*`. A weight that is none counts as 0."""
    weights: dict[str, float] = {}
    for part in header.lower().split(","):
        name, *parameters = part.split(";")
        found = [_WEIGHT.fullmatch(parameter) for parameter in parameters]
        weight = 1.0 if not found else float(found[0][1]) if found[0] is not None and len(found) == 1 else 0.0
        weights[_NAMES.get(name.strip(), name.strip())] = weight
    return weights.get(GZIP, weights.get("*", 0.0)) > 0


def content_encoding(headers: Headers) -> str:
    """The encoding of a body, GZIP or IDENTITY. MediaTypeError for any other, and for several."""
    given = headers.getlist("content-encoding")
    declared = ", ".join(given)
    encoding = _NAMES.get(declared.strip().lower()) if given else IDENTITY
    if encoding is None:
        raise MediaTypeError(f"The header Content-Encoding is {declared[:100]!r}; send the body plain or as gzip.")
    return encoding


def unpacked(body: bytes, limit: int) -> bytes:
    """Return the content of a gzip file of one member. InvalidBodyError if it is none, BodyTooLargeError if there are
    more than `limit` bytes in it."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        content = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise InvalidBodyError(f"The body is not gzip, as its header Content-Encoding says: {error}.") from error
    if len(content) > limit:
        raise too_large(limit)
    if not unpacker.eof:
        raise InvalidBodyError("The body's gzip data is cut off.")
    if unpacker.unused_data:
        raise InvalidBodyError("Something follows the body's gzip data; pack it as one member.")
    return content


def too_large(limit: int) -> BodyTooLargeError:
    """The error of a body beyond a limit in bytes."""
    return BodyTooLargeError(f"The body is over the limit of {limit} bytes. Send fewer or shorter searches at once.")
