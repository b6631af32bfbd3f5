"""Reading requests and writing answers: JSON in, JSON out, and errors as problems of RFC 9457."""

import asyncio
import zlib
from collections.abc import Mapping
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import orjson
from pydantic import BaseModel, ValidationError
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from lightretriever.artifacts.documents.document import read_object
from lightretriever.service import errors
from lightretriever.service.errors import shortened
from lightretriever.service.schemas import TAGS, BatchRequest, Problem, SearchRequest

JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
PROBLEM_JSON: Final = "application/problem+json"

_MAX_COMMAS: Final = 50_000
"""Most commas in a request, those in texts included: small values take a hundred times as long to read as to count."""

_MAX_WRONG: Final = 10_000
"""Most wrong fields or values of a request that pydantic describes, with some kB and 5 µs for each."""

ADDRESS_FIELDS: Final = {"q": "query", "like": "like", "k": "k", "offset": "offset", "mode": "mode", "task": "task"}
"""The query parameters of a search by address, each with the field of the search that it sets."""

_MAX_MESSAGE: Final = 300
_UNION: Final = "fusion"  # pydantic puts the chosen member of a tagged union into the path: fusion.linear.weights
_SHAPES: Final = {
    "filter": '{"field": "…", "eq": …}, with in, gt, gte, lt, lte or exists in place of eq, and {"and": […]}, '
    '{"or": […]} or {"not": …} around conditions',
    "fusion": '{"method": "rrf"}, or "linear"',
    "sort": '{"field": "…", "order": "desc"}',
    "snippets": "{}",
    "fields": '["title"]',
    "facets": '["…"]',
}
"""Forms of fields of a search that are often written another way."""

_SHAPES_OF_DOCUMENT: Final = {"fields": '{"title": "…", "text": "…"}'}

M = TypeVar("M", bound=BaseModel)


async def read_body(request: Request, media: str) -> bytes:
    """Read the body of a request that is declared as `media`, plain or packed by gzip. InvalidBodyError 415 if it is
    not, 400 if it can't be unpacked, 413 over the limit (announced, streamed or unpacked), 408 if it does not arrive
    within the deadline, counted from now."""
    packed, settings = _check_media_type(request, media), request.app.state.settings
    # The server has refused anything but digits, and cuts a body at the announced length.
    announced = request.headers.get("content-length", "")
    _check_size(int(announced[:20]) if announced.isdecimal() else 0, settings.max_body_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(settings.deadline_ms / 1e3):
            async for chunk in request.stream():
                body += chunk
                _check_size(len(body), settings.max_body_bytes)
    except TimeoutError as error:
        message = f"The body was not there within {settings.deadline_ms:g} ms. Send it faster."
        late = errors.InvalidBodyError(message, status=408)
        late.headers = {"connection": "close"}  # don't wait for the rest of the body
        raise late from error
    if not packed:
        return bytes(body)
    with request.app.state.admission.enter():
        return await asyncio.to_thread(_unpacked, bytes(body), settings.max_body_bytes)


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
    search: dict[str, str] = {}
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
            raise errors.InvalidRequestError.at(shortened(name), message, value)
        search[field] = value
    if not search.keys() & {"query", "like"}:
        raise errors.InvalidRequestError.at("q", "the field is required, unless there is like")
    try:
        return SearchRequest.model_validate(search, strict=False)
    except ValidationError as error:
        named = {field: name for name, field in ADDRESS_FIELDS.items()}
        wrong = (
            errors.FieldError(named[item.field], item.message, item.value)
            for item in _field_errors(error, SearchRequest)
        )
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
    """Return an error as application/problem+json (RFC 9457). `type` is the address of the kind's description on this
    server, relative to `instance`, so that it also leads there behind a proxy that takes a prefix off."""
    problem = Problem(
        type=f"{'../' * (instance.count('/') - 1)}openapi.json#/x-error-kinds/{error.kind}",
        title=error.title,
        status=error.status,
        detail=error.detail,
        instance=shortened(instance),
        kind=error.kind,
        request_id=request_id,
        errors=list(error.errors),
    )
    content = problem.model_dump_json(exclude_none=True)
    return Response(content, error.status, error.headers, media_type=PROBLEM_JSON)


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
        raise errors.InvalidRequestError.of(*_field_errors(error, model), count=count) from error


def _check_media_type(request: Request, media: str) -> bool:
    """True if the body is packed by gzip. InvalidBodyError if it is not declared as `media`, or packed another way."""
    declared = ", ".join(request.headers.getlist("content-type"))
    if declared.partition(";")[0].strip().lower() != media:
        shown = repr(declared[:100]) if declared else "missing"
        raise errors.InvalidBodyError(f"The header Content-Type is {shown}; send the body as {media}.", status=415)
    encoding = ", ".join(request.headers.getlist("content-encoding"))
    if encoding.strip().lower() not in ("", "identity", "gzip", "x-gzip"):
        message = f"The header Content-Encoding is {encoding[:100]!r}; send plain JSON, or gzip."
        raise errors.InvalidBodyError(message, status=415)
    return "gzip" in encoding.lower()


def _unpacked(body: bytes, limit: int) -> bytes:
    """Unpack a gzip file of one member. InvalidBodyError if it is none, or beyond `limit` bytes."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        content = unpacker.decompress(body, limit + 1)
    except zlib.error as error:
        raise errors.InvalidBodyError(f"The body is not gzip, as its header Content-Encoding says: {error}.") from error
    _check_size(len(content), limit)
    if not unpacker.eof or unpacker.unused_data:
        raise errors.InvalidBodyError("The body's gzip data is cut off, or more follows it; pack it as one member.")
    return content


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        message = f"The body is over the limit of {limit} bytes. Send fewer or shorter searches at once."
        raise errors.InvalidBodyError(message, status=413)


def _field_errors(error: ValidationError, model: type[BaseModel]) -> list[errors.FieldError]:
    """Convert the first twenty of pydantic's errors. Paths are dotted, without the tags of unions; messages and values
    are shortened."""
    items = error.errors(include_url=False)[: errors.MAX_FIELD_ERRORS]
    return [_field_error(item, model) for item in items]


def _field_error(item: Mapping[str, Any], model: type[BaseModel]) -> errors.FieldError:
    loc, kind = item["loc"], item["type"]
    path = [str(part) for before, part in zip(("", *loc), loc, strict=False) if before != _UNION and part not in TAGS]
    message, value = shortened(item["msg"].removeprefix("Value error, "), _MAX_MESSAGE), item["input"]
    shapes = _SHAPES if model in (SearchRequest, BatchRequest) else _SHAPES_OF_DOCUMENT
    shape = next((f": write {shapes[part]}" for part in reversed(loc) if part in shapes), "")
    if kind == "extra_forbidden":
        message = f"there is no such field{shape or _names(loc, model)}"
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        message = f"must be an object{shape}"  # pydantic's own message names a class of Python
    elif kind == "string_pattern_mismatch":
        message = "the text is empty or white space only"
    elif kind == "list_type":
        message = f"must be a list{shape}"
    elif kind in ("missing", "union_tag_not_found"):
        message, value = f"the field is required{shape}", None
    elif kind == "union_tag_invalid":
        # Pydantic's own message repeats the whole tag, which may be long.
        message, value = f"must be one of {item['ctx']['expected_tags']}", item["input"]["method"]
    if kind.startswith("union_tag"):
        path.append("method")
    return errors.FieldError(shortened(".".join(path) or "body"), message, value)


def _names(loc: tuple[str | int, ...], model: type[BaseModel]) -> str:
    """Return the fields that there are beside an unknown one; none of an object in a request."""
    if model is BatchRequest and len(loc) == 3:
        model, loc = SearchRequest, loc[2:]
    return f"; there are: {', '.join(model.model_fields)}" if len(loc) == 1 else ""
