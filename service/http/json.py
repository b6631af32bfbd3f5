"""Reading requests and writing answers: JSON in, JSON out."""

import asyncio
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from lightretriever.artifacts.documents.strict_json import read_object
from lightretriever.service import errors
from lightretriever.service.http.problems import PROBLEM_JSON, field_errors, problem
from lightretriever.service.schemas import SearchRequest

__all__ = [
    "ADDRESS_FIELDS",
    "JSON",
    "JSON_LINES",
    "json_response",
    "parse",
    "parse_address",
    "parse_document",
    "parse_documents",
    "problem_response",
    "read_body",
]

JSON: Final = "application/json"

JSON_LINES: Final = "application/x-ndjson"

_MAX_COMMAS: Final = 50_000
"""Most commas in a request, those in texts included: small values take a hundred times as long to read as to count."""

_MAX_WRONG: Final = 10_000
"""Most wrong fields or values of a request that pydantic describes, with some kB and 5 µs for each."""

ADDRESS_FIELDS: Final = {"q": "query", "like": "like", "k": "k", "offset": "offset", "mode": "mode", "task": "task"}
"""The query parameters of a search by address, each with the field of the search that it sets."""

_WHOLE: Final = re.compile(r"-?[0-9]{1,9}")
M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, *, max_body_bytes: int, deadline_ms: float, media: str = JSON) -> bytes:
    """Read the body of a request that is declared as `media`, plain or packed by gzip. MediaTypeError if it is not,
    InvalidBodyError if it can't be unpacked, BodyTooLargeError over the limit (announced, streamed or unpacked),
    BodyTimeoutError if it does not arrive within the deadline, counted from now."""
    packed = _check_media_type(request, media)
    try:
        async with asyncio.timeout(deadline_ms / 1e3):
            body = await _read(request, max_body_bytes)
    except TimeoutError as error:
        raise errors.BodyTimeoutError(f"The body was not there within {deadline_ms:g} ms. Send it faster.") from error
    if not packed:
        return body
    with request.app.state.admission.enter():
        return await asyncio.to_thread(_unpacked, body, max_body_bytes)


def parse(body: bytes, model: type[M]) -> M:
    """Read JSON into a model. Don't call it in an event loop: a large body takes milliseconds. Of a key that stands
    twice, the last value counts. InvalidBodyError for invalid JSON (including bad UTF-8, NaN, lone surrogates and
    nesting beyond 1,024), InvalidRequestError if it has too many values, or does not fit the model."""
    if body.count(b",") > _MAX_COMMAS:
        message = f"there are more than {_MAX_COMMAS:,} commas in it; send fewer values"
        raise errors.InvalidRequestError.at("body", message)
    try:
        return _validated(orjson.loads(body), model)
    except orjson.JSONDecodeError as error:
        raise errors.InvalidBodyError(f"The body is not JSON: {error}.") from error


def parse_address(parameters: QueryParams, raw: bytes = b"") -> SearchRequest:
    """Read a search from the query of an address, also given `raw`. InvalidRequestError names the parameter."""
    search: dict[str, str | int] = {}
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        message = "the address is not UTF-8: encode the text as UTF-8 and then in per cent, such as caf%C3%A9"
        raise errors.InvalidRequestError.at("q", message) from error
    for name, value in parameters.multi_items():
        field = ADDRESS_FIELDS.get(name)
        if field is None or field in search:
            names = ", ".join(ADDRESS_FIELDS)
            message = f"there is no such parameter, only {names}" if field is None else "the parameter is there twice"
            raise errors.InvalidRequestError.at(errors.shortened(name), message, value)
        search[field] = int(value) if _WHOLE.fullmatch(value) and field in ("k", "offset") else value
    if not search.keys() & {"query", "like"}:
        raise errors.InvalidRequestError.at("q", "the field is required, unless there is like")
    try:
        return SearchRequest.model_validate(search)
    except ValidationError as error:
        named = {field: name for name, field in ADDRESS_FIELDS.items()}
        wrong = (errors.FieldError(named[item.field], item.message, item.value) for item in field_errors(error))
        raise errors.InvalidRequestError.of(*wrong) from error


def parse_document(body: bytes, model: type[M]) -> M:
    """Read a request with one document, as `read_object` reads a line of a corpus. Errors as in `parse`."""
    try:
        content = read_object(body, around=1)
    except ValueError as error:
        raise errors.InvalidBodyError(f"The document can't be read: {error}.") from error
    return _validated(content, model)


def parse_documents(body: bytes, model: type[M]) -> list[M]:
    """Read a request with a document on each line that is not blank. Errors as in `parse`, for the first bad line."""
    read = []
    for number, line in enumerate(filter(bytes.strip, body.split(b"\n"))):
        try:
            read.append(parse_document(line, model))
        except errors.ServiceError as error:
            raise error.within(f"lines.{number}") from error
    if not read:
        raise errors.InvalidRequestError.at("body", "there is no line in it; send one document on each")
    return read


def problem_response(error: errors.ServiceError, *, instance: str, request_id: str) -> Response:
    """Return an error as application/problem+json."""
    body = orjson.dumps(problem(error, instance=instance, request_id=request_id))
    return Response(body, error.status, error.headers, media_type=PROBLEM_JSON)


def json_response(answer: BaseModel | Mapping[str, Any]) -> Response:
    """Return as JSON a model, or a mapping that may have models in it."""
    return Response(orjson.dumps(answer, default=BaseModel.model_dump), media_type=JSON)


def _validated(content: Any, model: type[M]) -> M:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        count = error.error_count()
        if count > _MAX_WRONG:
            raise errors.InvalidRequestError.at("body", f"{count:,} fields or values in it are wrong") from None
        raise errors.InvalidRequestError.of(*field_errors(error), count=count) from error


def _check_media_type(request: Request, media: str) -> bool:
    """True if the body is packed by gzip. MediaTypeError if it is not declared as `media`, or packed another way."""
    declared = ", ".join(request.headers.getlist("content-type"))
    if declared.partition(";")[0].strip().lower() != media:
        shown = repr(declared[:100]) if declared else "missing"
        raise errors.MediaTypeError(f"The header Content-Type is {shown}; send the body as {media}.")
    encoding = ", ".join(request.headers.getlist("content-encoding"))
    if encoding.strip().lower() not in ("", "identity", "gzip", "x-gzip"):
        raise errors.MediaTypeError(f"The header Content-Encoding is {encoding[:100]!r}; send plain JSON, or gzip.")
    return "gzip" in encoding.lower()


async def _read(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    # The server has refused anything but digits, and cuts a body at the announced length.
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _unpacked(body: bytes, limit: int) -> bytes:
    """Unpack a gzip file of one member. InvalidBodyError if it is none, BodyTooLargeError beyond `limit` bytes."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        content = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise errors.InvalidBodyError(f"The body is not gzip, as its header Content-Encoding says: {error}.") from error
    if len(content) > limit:
        raise _too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise errors.InvalidBodyError("The body's gzip data is cut off, or more follows it; pack it as one member.")
    return content


def _too_large(limit: int) -> errors.BodyTooLargeError:
    return errors.BodyTooLargeError(
        f"The body is over the limit of {limit} bytes. Send fewer or shorter searches at once."
    )
