"""Reading requests and writing answers: JSON in, JSON out."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from lightretriever.artifacts.documents.bounds import MAX_NESTING, nesting
from lightretriever.artifacts.documents.strict_json import read_object
from lightretriever.service.errors import (
    BodyTimeoutError,
    FieldError,
    InvalidJsonError,
    InvalidRequestError,
    MediaTypeError,
    ServiceError,
    shortened,
)
from lightretriever.service.http.encodings import IDENTITY, content_encoding, too_large, unpacked
from lightretriever.service.http.problems import PROBLEM_JSON, field_errors, problem
from lightretriever.service.schemas import BatchRequest, SearchRequest

__all__ = [
    "ADDRESS_FIELDS",
    "JSON",
    "JSON_LINES",
    "MOST_NESTED",
    "MOST_VALUES",
    "json_response",
    "parse",
    "parse_address",
    "parse_batch",
    "parse_document",
    "parse_documents",
    "problem_response",
    "read_body",
]

JSON: Final = "application/json"

JSON_LINES: Final = "application/x-ndjson"

MOST_NESTED: Final = 64
"""Most objects and lists around a value of a request. The deepest valid filter has fewer."""

MOST_VALUES: Final = 5_000
"""Most values in a request, or in one search of a batch: names and values of fields, and elements of lists. The largest
valid filter has fewer. Without the bound, validation would build an error of a few kB for each wrong value."""

MOST_DOCUMENT_VALUES: Final = 100_000
"""Most values in a document to write, which has a vector and impacts."""

_COMMAS: Final = 10
"""Most commas for each possible value, those in texts included. Reading a body of many values takes a hundred times as
long as counting them, and nothing else runs meanwhile."""

ADDRESS_FIELDS: Final = {"q": "query", "k": "k", "offset": "offset", "mode": "mode", "task": "task"}
"""The query parameters of a search by address, each with the field of the search that it sets."""

_WHOLE: Final = re.compile(r"-?[0-9]{1,9}")
M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, *, max_body_bytes: int, deadline_ms: float, media: str = JSON) -> bytes:
    """Read the body of a request that is declared as `media`, plain or packed by gzip.

    MediaTypeError if it is not, InvalidJsonError if its length is announced in two ways or it can't be unpacked,
    BodyTooLargeError over the limit (announced, streamed or unpacked), BodyTimeoutError if it does not arrive within
    the deadline, counted from now.
    """
    encoding = _check_media_type(request, media)
    if {"transfer-encoding", "content-length"} <= set(request.headers):
        # A proxy and this server may trust different headers, and read the rest as another request (smuggling).
        raise InvalidJsonError("The request announces both a length and chunks; send one of the two.")
    try:
        async with asyncio.timeout(deadline_ms / 1e3):
            body = await _read(request, max_body_bytes)
    except TimeoutError as error:
        raise BodyTimeoutError(f"The body was not there within {deadline_ms:g} ms. Send it faster.") from error
    if encoding == IDENTITY:
        return body
    with request.app.state.admission.enter():
        return await asyncio.to_thread(unpacked, body, max_body_bytes)


def parse(body: bytes, model: type[M]) -> M:
    """Read JSON of at most MOST_VALUES values into a model. Don't call it in an event loop: a large body takes
    milliseconds. Of a key that stands twice, the last value counts.

    InvalidJsonError for invalid JSON (including bad UTF-8, NaN, lone surrogates and nesting beyond 1,024),
    InvalidRequestError if it is too deep or too large, or does not fit the model.
    """
    return _validated(_loaded(body, MOST_VALUES), model)


def parse_address(parameters: QueryParams, raw: bytes = b"") -> SearchRequest:
    """Read a search from the query of an address, also given `raw`. InvalidRequestError names the parameter."""
    search: dict[str, str | int] = {}
    try:
        unquote_to_bytes(raw).decode()
    except UnicodeDecodeError as error:
        message = "the address is not UTF-8: encode the text as UTF-8 and then in per cent, such as caf%C3%A9"
        raise InvalidRequestError.of(FieldError("q", message)) from error
    for name, value in parameters.multi_items():
        field = ADDRESS_FIELDS.get(name)
        if field is None or field in search:
            known = ", ".join(ADDRESS_FIELDS)
            message = f"there is no such parameter, only {known}" if field is None else "the parameter is there twice"
            raise InvalidRequestError.of(FieldError(shortened(name), message, shortened(value)))
        search[field] = int(value) if _WHOLE.fullmatch(value) and field in ("k", "offset") else value
    if "query" not in search:
        raise InvalidRequestError.of(FieldError("q", "the field is required"))
    try:
        return SearchRequest.model_validate(search)
    except ValidationError as error:
        named = {field: name for name, field in ADDRESS_FIELDS.items()}
        wrong = (FieldError(named[one.field], one.message, one.value) for one in field_errors(error))
        raise InvalidRequestError.of(*wrong) from error


def parse_batch(body: bytes, most: int) -> BatchRequest:
    """Read a batch of at most `most` searches. Errors as in `parse`, for the first bad search."""
    content = _loaded(body, most * MOST_VALUES)
    searches = content.get("searches") if isinstance(content, dict) else None
    if not isinstance(searches, list):
        return _validated(content, BatchRequest)
    if len(searches) > most:
        message = f"a batch has at most {most} searches; send the others in another request"
        raise InvalidRequestError.of(FieldError("searches", message, len(searches)))
    read = []
    for number, search in enumerate(searches):
        try:
            read.append(_validated(search, SearchRequest))
        except InvalidRequestError as error:
            raise error.within(f"searches.{number}") from error
    return _validated({**content, "searches": read}, BatchRequest)


def parse_document(body: bytes, model: type[M]) -> M:
    """Read a request with one document, as `read_object` reads a line of a corpus. Errors as in `parse`."""
    _check_commas(body, MOST_DOCUMENT_VALUES)
    try:
        content = read_object(body, around=1)
    except ValueError as error:
        raise InvalidJsonError(f"The document can't be read: {error}.") from error
    return _validated(content, model, MOST_DOCUMENT_VALUES, MAX_NESTING + 1)


def parse_documents(body: bytes, model: type[M]) -> list[M]:
    """Read a request with a document on each line that is not blank. Errors as in `parse`, for the first bad line,
    counted from 0."""
    read = []
    for number, line in enumerate(filter(bytes.strip, body.split(b"\n"))):
        try:
            read.append(parse_document(line, model))
        except ServiceError as error:
            raise error.within(f"lines.{number}") from error
    if not read:
        raise InvalidRequestError.of(FieldError("body", "there is no line in it; send one document on each"))
    return read


def problem_response(
    error: ServiceError, *, instance: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as application/problem+json."""
    body = orjson.dumps(problem(error, instance=instance, request_id=request_id))
    return Response(body, error.status, {**error.headers, **(headers or {})}, media_type=PROBLEM_JSON)


def json_response(answer: BaseModel | Mapping[str, Any]) -> Response:
    """Return as JSON a model, or a mapping that may have models in it."""
    return Response(orjson.dumps(answer, default=BaseModel.model_dump), media_type=JSON)


def _check_commas(body: bytes, most: int) -> None:
    if body.count(b",") > _COMMAS * most:
        message = f"there are more than {_COMMAS * most:,} commas in it; send fewer values"
        raise InvalidRequestError.of(FieldError("body", message))


def _loaded(body: bytes, most: int) -> Any:
    _check_commas(body, most)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidJsonError(f"The body is not JSON: {error}.") from error


def _validated(content: Any, model: type[M], most: int = MOST_VALUES, deepest: int = MOST_NESTED) -> M:
    _check_size(content, most, deepest)
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InvalidRequestError.of(*field_errors(error), count=error.error_count()) from error


def _check_size(content: Any, most: int, deepest: int) -> None:
    """Raise InvalidRequestError for too many or too deep values."""
    depth, values = nesting(content, deepest, most)
    if values > most:
        message = f"there are more than {most} values in it; send fewer"
        raise InvalidRequestError.of(FieldError("body", message))
    if depth > deepest:
        message = f"more than {deepest} objects and lists stand around a value; nest it less"
        raise InvalidRequestError.of(FieldError("body", message))


def _check_media_type(request: Request, media: str) -> str:
    """Return the body's encoding. MediaTypeError for a body that is not declared as `media`, or is packed another
    way."""
    declared = ", ".join(request.headers.getlist("content-type"))
    if declared.partition(";")[0].strip().lower() != media:
        shown = repr(declared[:100]) if declared else "missing"
        raise MediaTypeError(f"The header Content-Type is {shown}; send the body as {media}.")
    return content_encoding(request.headers)


async def _read(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    # The server has refused anything but digits, and cuts a body at the announced length.
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise too_large(limit)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise too_large(limit)
    return bytes(body)
