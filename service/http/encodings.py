"""Bodies of requests that are packed by gzip."""

import zlib
from typing import Final

from starlette.datastructures import Headers

from lightretriever.service.errors import BodyTooLargeError, InvalidBodyError, MediaTypeError

__all__ = ["GZIP", "IDENTITY", "content_encoding", "too_large", "unpacked"]

GZIP: Final = "gzip"
IDENTITY: Final = "identity"
_NAMES: Final = {"gzip": GZIP, "x-gzip": GZIP, "identity": IDENTITY}  # RFC 9110, 8.4.1.3


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
