"""The routes of single documents."""

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from fastapi import APIRouter, Request, Response
from starlette.convertors import StringConvertor, register_url_convertor

from lightretriever.artifacts.live.documents import Change, Result
from lightretriever.service import errors, schemas
from lightretriever.service.http import openapi
from lightretriever.service.http.handling import admitted, answered, begin, clock_of, enter, in_thread
from lightretriever.service.http.json import JSON_LINES, json_response, parse_document, parse_documents
from lightretriever.service.http.openapi import READ, WRITE, parameter
from lightretriever.service.search.engine import ENCODE_DOCUMENT, REQUESTS, WRITES, SearchEngine
from lightretriever.service.search.live import (
    REFRESH_S,
    DocumentWrites,
    get_document,
    read_change,
    read_deletion,
    read_lines,
)


class _AnyText(StringConvertor):
    """The rest of a path. Starlette's own `path` drops a line break at the end, and fails on an earlier one."""

    regex = "(?s:.*)"


register_url_convertor("any", _AnyText())
router = APIRouter(default_response_class=Response)
route = partial(openapi.route, router)

_ETAG: Final = re.compile(r'"([!#-~]{1,300})"')
_WAIT: Final = "wait_for"
_POLL_S: Final = 0.02  # between the first two looks whether other processes search a change
_MAX_POLL_S: Final = 0.5  # between later ones: each looks at files, and any number of requests may wait
_ENCODED_AT_ONCE: Final = 16  # documents
T = TypeVar("T")
_ID: Final = parameter("id", "path", "Id, percent-encoded.")
_IF_MATCH: Final = parameter(
    "if-match",
    "header",
    "The version that the document must have, in quotation marks, as in the answer's `ETag`.",
    pattern=_ETAG.pattern,
)
_REFRESH: Final = parameter(
    "refresh", "query", "`wait_for`: answer when searches of every process see the change.", enum=[_WAIT]
)


@route("GET", "/documents/{id:any}", "Read a document", answer=schemas.Document, errors=READ, parameters=[_ID])
async def document(request: Request) -> Response:
    """Return a stored document by its id; where documents can be written, as it is now, with its version."""
    enter(request, "search")
    clock = clock_of(request)
    async with admitted(request) as engine:  # in a lane of writes, which the journal waits for
        read = partial(get_document, engine, request.path_params["id"], clock)
        return _answer(await in_thread(engine, clock, read, lane=_lane(engine)))


@route(
    "PUT",
    "/documents/{id:any}",
    "Write a document",
    request=schemas.DocumentWrite,
    answer=schemas.DocumentChange,
    errors=WRITE,
    parameters=[_ID, _IF_MATCH, _REFRESH],
)
async def put(request: Request) -> Response:
    """Write a document to the cluster or the journal, in place of the one with this id, if there is one.

    Vector and impacts that are not given stay, as long as title and text do; a service with a model encodes another
    text, if neither is given. Needs an API key with the scope `admin`.
    """
    body = await begin(request, "admin")

    def read(engine: SearchEngine, version: str | None) -> list[Change]:
        return [read_change(engine, request.path_params["id"], parse_document(body, schemas.DocumentWrite), version)]

    return _answer(await _changed(request, read, DocumentWrites.changed_one))


@route(
    "POST",
    "/documents",
    "Write and delete many documents",
    request=schemas.DocumentLine,
    media=JSON_LINES,
    answer=schemas.DocumentChanges,
    errors=WRITE,
    parameters=[_REFRESH],
)
async def change(request: Request) -> Response:
    """Make the changes of all lines in their order, each with one document to write or to delete.

    A line that can't be read refuses all of them, before anything is written. What a document keeps others from, such
    as another version, refuses its own line alone. A journal has all of the changes or none. A service with a model
    encodes the documents that have neither vector nor impacts. Needs an API key with the scope `admin`.
    """
    body = await begin(request, "admin", JSON_LINES)

    def read(engine: SearchEngine, version: str | None) -> list[Change]:
        if version is not None:
            message = "it is for one document; each line has its own `version`"
            raise errors.InvalidRequestError.at("if-match", message, version)
        return read_lines(engine, parse_documents(body, schemas.DocumentLine))

    return json_response(await _changed(request, read, DocumentWrites.changed, many=True))


@route(
    "DELETE",
    "/documents/{id:any}",
    "Delete a document",
    answer=schemas.DocumentChange,
    errors=(*WRITE, errors.DocumentNotFoundError),
    parameters=[_ID, _IF_MATCH, _REFRESH],
)
async def delete(request: Request) -> Response:
    """Delete a document, on the cluster or by the journal. Needs an API key with the scope `admin`."""
    enter(request, "admin")

    def read(_: SearchEngine, version: str | None) -> list[Change]:
        return [read_deletion(request.path_params["id"], version)]

    return json_response(await _changed(request, read, DocumentWrites.changed_one))


@route("GET", "/terms/{id:any}", "The terms of a document", answer=schemas.DocumentTerms, errors=READ, parameters=[_ID])
async def terms(request: Request) -> Response:
    """Return the terms of a document in the sparse index, including those that its text lacks.

    This visits every term of the inverted index, which takes milliseconds.
    """
    enter(request, "search")
    return await answered(request, lambda engine, clock: engine.terms(request.path_params["id"], clock))


def _lane(engine: SearchEngine) -> str:
    return REQUESTS if engine.parts.backends.live is None else WRITES


async def _changed(
    request: Request,
    read: Callable[[SearchEngine, str | None], list[Change]],
    answer: Callable[[DocumentWrites, list[Result]], T],
    *,
    many: bool = False,
) -> T:
    """Make the changes that a request asks for, in threads that searches don't need, and return the answer. Waiting for
    other processes takes no thread and no place of a request."""
    clock, (version, wait) = clock_of(request), _options(request)
    extra_s = REFRESH_S if wait else 0.0
    async with admitted(request) as engine:

        def begin() -> DocumentWrites:
            return DocumentWrites(engine, clock, read(engine, version), wait=wait, many=many)

        writes = await in_thread(engine, clock, begin, lane=_lane(engine))
        extra_s += engine.settings.encode_timeout_s if writes.new else 0.0
        for start in range(0, len(writes.new), _ENCODED_AT_ONCE):  # others take their turn with the model in between
            part = writes.new[start : start + _ENCODED_AT_ONCE]
            await in_thread(engine, clock, partial(writes.encode, part), extra_s, ENCODE_DOCUMENT)
        results = await in_thread(engine, clock, writes.write, extra_s, WRITES)
        answered = answer(writes, results)
        position = writes.live.position
    pause = _POLL_S
    try:
        while wait and not writes.seen(position):
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _MAX_POLL_S)
    except asyncio.CancelledError as error:
        raise errors.DeadlineError(
            "The change was made, but the service stops: another process may lack it."
        ) from error
    return answered


def _answer(answer: schemas.Document | schemas.DocumentChange) -> Response:
    response = json_response(answer)
    if answer.version is not None:
        response.headers["etag"] = f'"{answer.version}"'
    return response


def _options(request: Request) -> tuple[str | None, bool]:
    for name, value in request.query_params.multi_items():
        if (name, value) != ("refresh", _WAIT):
            message = f"there is no such parameter, only refresh={_WAIT}"
            raise errors.InvalidRequestError.at(errors.shortened(name), message, value)
    if (refused := request.headers.get("if-none-match")) is not None:
        message = "no write takes this header; for a document that is there, If-Match names its version"
        raise errors.InvalidRequestError.at("if-none-match", message, refused)
    version = request.headers.get("if-match")
    if version is None:
        return None, bool(request.query_params)
    match = _ETAG.fullmatch(version.strip())
    if match is None:
        message = 'expected the ETag of a document, in quotation marks, such as "120.1.5e884898da28"'
        raise errors.InvalidRequestError.at("if-match", message, version)
    return match[1], bool(request.query_params)
