"""The routes of single documents."""

import re
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from starlette.convertors import StringConvertor, register_url_convertor

from lightretriever.artifacts.errors import UnencodedError
from lightretriever.service.errors import FieldError, InvalidRequestError, shortened
from lightretriever.service.http.handling import (
    admitted,
    answered,
    begin,
    clock_of,
    enter,
    in_thread,
)
from lightretriever.service.http.json import JSON_LINES, json_response, parse_document, parse_documents
from lightretriever.service.http.openapi import DELETE_ERRORS, DOCUMENT_ERRORS, PUT_ERRORS, describe
from lightretriever.service.schemas import (
    Document,
    DocumentChanges,
    DocumentDeleted,
    DocumentLine,
    DocumentTerms,
    DocumentWrite,
    DocumentWritten,
)
from lightretriever.service.search.encoder import ENCODE_DOCUMENT
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.live import REFRESH_S, DocumentPut, change_documents, delete_document, get_document

__all__ = ["router"]


class _AnyText(StringConvertor):
    """The rest of a path. Starlette's own `path` drops a line break at the end, and fails on an earlier one."""

    regex = "(?s:.*)"


register_url_convertor("any", _AnyText())
router = APIRouter(default_response_class=Response)

_ETAG: Final = re.compile(r'"([!#-~]{1,300})"')
_WAIT: Final = "wait_for"
_OPTIONS: Final[list[dict[str, Any]]] = [
    {
        "name": "if-match",
        "in": "header",
        "required": False,
        "description": "The version that the document must have, in quotation marks, as in the answer's `ETag`.",
        "schema": {"type": "string", "pattern": _ETAG.pattern},
    },
    {
        "name": "refresh",
        "in": "query",
        "required": False,
        "description": "`wait_for`: answer when searches of every process see the change, which is within a second "
        "otherwise.",
        "schema": {"type": "string", "enum": [_WAIT]},
    },
]


@router.get(
    "/documents/{id:any}",
    **describe("Read a document", answer=Document, errors=DOCUMENT_ERRORS, path_parameter="id"),
    tags=["search"],
)
async def document(request: Request) -> Response:
    """Give a stored document by its id; where documents can be written, as it is now, with its version."""
    enter(request, "search")
    return await answered(request, lambda engine: _answer(get_document(engine, _id(request), clock_of(request))))


@router.put(
    "/documents/{id:any}",
    **describe(
        "Write a document",
        request=DocumentWrite,
        answer=DocumentWritten,
        errors=PUT_ERRORS,
        path_parameter="id",
        parameters=_OPTIONS,
    ),
    tags=["operation"],
)
async def put(request: Request) -> Response:
    """Write a document to the cluster or the journal, in place of the one with this id, if there is one.

    Vector and impacts that are not given stay, as long as title and text do; a service with a model encodes another
    text, if neither is given. Needs an API key with the scope `admin`.
    """
    body = await begin(request, "admin")
    version, wait = _options(request)

    clock, extra_s = clock_of(request), REFRESH_S if wait else 0.0

    def read(engine: SearchEngine) -> DocumentPut:
        asked = parse_document(body, DocumentWrite)
        return DocumentPut.read(engine, _id(request), asked, clock, version=version, wait=wait)

    async with admitted(request) as engine:
        put = await in_thread(engine, clock, lambda: read(engine))
        try:
            written = await in_thread(engine, clock, put.write, extra_s)
        except UnencodedError:
            extra_s += engine.settings.encode_timeout_s
            await in_thread(engine, clock, put.encode, extra_s, ENCODE_DOCUMENT)  # waits for the model in its own lane
            written = await in_thread(engine, clock, put.write, extra_s)
        return _answer(written)


@router.post(
    "/documents",
    **describe(
        "Write and delete many documents",
        request=DocumentLine,
        media=JSON_LINES,
        answer=DocumentChanges,
        errors=PUT_ERRORS,
        parameters=_OPTIONS[1:],
    ),
    tags=["operation"],
)
async def change(request: Request) -> Response:
    """Make the changes of all lines in their order, each with one document to write or to delete.

    A line that can't be read refuses all of them, before anything is written. What a document keeps others from, such
    as another version, refuses its own line alone. A journal has all of the changes or none. Needs an API key with the
    scope `admin`.
    """
    body = await begin(request, "admin", JSON_LINES)
    version, wait = _options(request)
    if version is not None:
        message = "it is for one document; each line has its own `version`"
        raise InvalidRequestError.of(FieldError("if-match", message, shortened(version)))

    def work(engine: SearchEngine) -> Response:
        lines = parse_documents(body, DocumentLine)
        return json_response(change_documents(engine, lines, clock_of(request), wait=wait))

    return await answered(request, work, extra_s=REFRESH_S if wait else 0.0)


@router.delete(
    "/documents/{id:any}",
    **describe(
        "Delete a document",
        answer=DocumentDeleted,
        errors=DELETE_ERRORS,
        path_parameter="id",
        parameters=_OPTIONS,
    ),
    tags=["operation"],
)
async def delete(request: Request) -> Response:
    """Delete a document, on the cluster or by the journal. Needs an API key with the scope `admin`."""
    enter(request, "admin")
    version, wait = _options(request)

    def work(engine: SearchEngine) -> Response:
        return json_response(delete_document(engine, _id(request), clock_of(request), version=version, wait=wait))

    return await answered(request, work, extra_s=REFRESH_S if wait else 0.0)


@router.get(
    "/terms/{id:any}",
    **describe("The terms of a document", answer=DocumentTerms, errors=DOCUMENT_ERRORS, path_parameter="id"),
    tags=["search"],
)
async def terms(request: Request) -> Response:
    """Give the terms of a document in the sparse index, including those that its text lacks.

    This visits every term of the inverted index, which takes milliseconds.
    """
    enter(request, "search")
    return await answered(request, lambda engine: json_response(engine.terms(_id(request), clock_of(request))))


def _id(request: Request) -> str:
    document_id: str = request.path_params["id"]
    return document_id


def _answer(answer: Document | DocumentWritten) -> Response:
    response = json_response(answer)
    if answer.version is not None:
        response.headers["etag"] = f'"{answer.version}"'
    return response


def _options(request: Request) -> tuple[str | None, bool]:
    """Give the version that the document must have, and whether to wait. InvalidRequestError."""
    for name, value in request.query_params.multi_items():
        if (name, value) != ("refresh", _WAIT):
            message = f"there is no such parameter, only refresh={_WAIT}"
            raise InvalidRequestError.of(FieldError(shortened(name), message, shortened(value)))
    if (refused := request.headers.get("if-none-match")) is not None:
        message = "no write takes this header; for a document that is there, If-Match names its version"
        raise InvalidRequestError.of(FieldError("if-none-match", message, shortened(refused)))
    given = request.headers.get("if-match")
    if given is None:
        return None, bool(request.query_params)
    found = _ETAG.fullmatch(given.strip())
    if found is None:
        message = 'expected the ETag of a document, in quotation marks, such as "120.1.5e884898da28"'
        raise InvalidRequestError.of(FieldError("if-match", message, shortened(given)))
    return found[1], bool(request.query_params)
