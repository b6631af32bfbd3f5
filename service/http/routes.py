"""The routes. Each reads its JSON, runs the engine in a thread, and writes its JSON.

FastAPI describes them (`router`) and Starlette serves them (`served`). They have no dependencies and read their bodies
themselves, so FastAPI's request handling would add nothing and cost as much as all the rest.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Final, TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from lightretriever.service.errors import DeadlineError
from lightretriever.service.http.api_keys import KeyScope
from lightretriever.service.http.info import info_of
from lightretriever.service.http.json import json_response, parse, parse_batch, read_body
from lightretriever.service.http.openapi import (
    ADMIN_ERRORS,
    DOCUMENT_ERRORS,
    ENCODE_ERRORS,
    READY_ERRORS,
    SEARCH_ERRORS,
    describe,
)
from lightretriever.service.http.pages import Page
from lightretriever.service.http.state import AppState
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import (
    BatchRequest,
    BatchResponse,
    Document,
    DocumentTerms,
    EncodeRequest,
    EncodeResponse,
    Info,
    Reloaded,
    SearchRequest,
    SearchResponse,
    Status,
)
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.reload import EngineHolder
from lightretriever.service.search.request import search_cost
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.routing import Route

__all__ = ["router", "served"]

T = TypeVar("T")


class _AnyText(StringConvertor):
    """The rest of a path. Starlette's own `path` drops a line break at the end, and fails on an earlier one."""

    regex = "(?s:.*)"


register_url_convertor("any", _AnyText())
router = APIRouter(default_response_class=Response)

_PAGE: Final = Page.read(Path(__file__).parents[1] / "static" / "page.html")
_DOCS: Final = Page.read(Path(__file__).parents[1] / "static" / "docs.html")
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


@router.post(
    "/search", **describe("Search", request=SearchRequest, answer=SearchResponse, errors=SEARCH_ERRORS), tags=["search"]
)
async def search(request: Request) -> Response:
    """Find documents for one query. The two legs run in parallel, under one deadline."""
    body = await _begin(request)

    def work(engine: SearchEngine) -> Response:
        asked = parse(body, SearchRequest)
        _charge(request, search_cost(asked, engine.settings))
        return json_response(engine.answer(asked, _clock(request)))

    return await _work(request, work)


@router.post(
    "/search/batch",
    **describe("Search for several queries", request=BatchRequest, answer=BatchResponse, errors=SEARCH_ERRORS),
    tags=["search"],
)
async def search_batch(request: Request) -> Response:
    """Find documents for several queries. The batch is answered as a whole: an error of one search fails all."""
    body, clock, most = await _begin(request), _clock(request), _state(request).settings.max_batch
    with _state(request).admission.enter(), _holder(request).lease() as engine:
        _tell_legs(request, engine)
        # Not in the engine's threads: while these are busy, a batch for which there is no room is refused at once.
        asked = (await asyncio.to_thread(parse_batch, body, most)).searches
        cost = sum(search_cost(one, engine.settings) for one in asked)
        with _state(request).admission.enter(cost, inside=1):
            _charge(request, cost)
            searches = await _in_thread(engine, clock, lambda: engine.batch(asked, clock))
            tasks = [asyncio.ensure_future(_in_thread(engine, clock, answer)) for answer in searches]
            try:
                results = [await task for task in tasks]
            finally:
                for task in tasks:
                    task.cancel()
            return await _in_thread(engine, clock, lambda: json_response({"results": results}))


@router.post(
    "/encode", **describe("Encode", request=EncodeRequest, answer=EncodeResponse, errors=ENCODE_ERRORS), tags=["search"]
)
async def encode(request: Request) -> Response:
    """Encode a text as a query: its dense vector, and its tokens with their counts and weights."""
    body = await _begin(request)
    return await _work(
        request, lambda engine: json_response(engine.encode(parse(body, EncodeRequest), _clock(request)))
    )


@router.get(
    "/documents/{id:any}",
    **describe("Read a document", answer=Document, errors=DOCUMENT_ERRORS, path_parameter="id"),
    tags=["search"],
)
async def document(request: Request) -> Response:
    """Give a stored document by its id."""
    _enter(request, "search")
    document_id = request.path_params["id"]
    return await _work(request, lambda engine: json_response(engine.document(document_id, _clock(request))))


@router.get(
    "/terms/{id:any}",
    **describe("The terms of a document", answer=DocumentTerms, errors=DOCUMENT_ERRORS, path_parameter="id"),
    tags=["search"],
)
async def terms(request: Request) -> Response:
    """Give the terms of a document in the sparse index, including those that its text lacks.

    This visits every term of the inverted index, which takes milliseconds.
    """
    _enter(request, "search")
    document_id = request.path_params["id"]
    return await _work(request, lambda engine: json_response(engine.terms(document_id, _clock(request))))


@router.get("/livez", **describe("Is the process alive?", answer=Status), tags=["operation"])
async def livez(request: Request) -> Response:
    """Answer 200 while the process runs."""
    return json_response(Status(status="alive"))


@router.get("/readyz", **describe("Should it get requests?", answer=Status, errors=READY_ERRORS), tags=["operation"])
async def readyz(request: Request) -> Response:
    """Answer 200 once a search has used both legs, and 503 before that and while the threads of a leg are stuck."""
    _engine(request).require_ready()
    return json_response(Status(status="ready"))


@router.get("/info", **describe("What is served?", answer=Info), tags=["operation"])
async def info(request: Request) -> Response:
    """Give the bundle's facts, the tasks and fields a request may name, and the limits of a request."""
    return json_response(info_of(_engine(request)))


@router.get("/metrics", **describe("Metrics for Prometheus", answer="text/plain"), tags=["operation"])
async def metrics(request: Request) -> Response:
    """Give all metrics in Prometheus' text format."""
    text = await asyncio.to_thread(_holder(request).metrics.text)
    return Response(text, media_type=_METRICS_TYPE)


@router.post(
    "/admin/reload",
    **describe("Serve what the folder has now", answer=Reloaded, errors=ADMIN_ERRORS),
    tags=["operation"],
)
async def reload(request: Request) -> Response:
    """Check the served folder now, and answer when its bundle has been swapped in or refused.

    Needs an API key with the scope `admin`. The request names no path: the folder is that of the command line.
    """
    _enter(request, "admin")
    swapped = await _holder(request).reload()
    return json_response(Reloaded(swapped=swapped, bundle=info_of(_engine(request)).bundle))


@router.get("/", **describe("Search page", answer="text/html"), tags=["pages"])
async def page(request: Request) -> Response:
    """Give a page that searches as you type."""
    return _PAGE.response()


@router.get("/docs", **describe("API documentation", answer="text/html"), tags=["pages"])
async def docs(request: Request) -> Response:
    """Give this description as a page."""
    return _DOCS.response()


def served() -> list[Route]:
    """Give the routes for Starlette."""
    described = (route for route in router.routes if isinstance(route, APIRoute))
    return [Route(route.path, route.endpoint, methods=list(route.methods or ())) for route in described]


def _engine(request: Request) -> SearchEngine:
    return _holder(request).engine


def _holder(request: Request) -> EngineHolder:
    return _state(request).holder


def _state(request: Request) -> AppState:
    state: AppState = request.app.state
    return state


def _enter(request: Request, scope: KeyScope) -> None:
    """Let the request in, and keep who asks for what is charged later."""
    state, authorization = request.scope["state"], request.headers.get("authorization", "")
    about = state["about"]
    state["caller"] = _state(request).access.enter(scope, authorization, about["client"], about)


def _charge(request: Request, cost: int) -> None:
    """Charge who asks, in the limit on the rate, for a request that costs as much as `cost` searches."""
    _state(request).access.charge(request.scope["state"]["caller"], cost)


def _clock(request: Request) -> StageClock:
    clock: StageClock = request.scope["state"]["clock"]
    return clock


async def _begin(request: Request) -> bytes:
    """Admit the request and read its body."""
    _enter(request, "search")
    state = _state(request)
    state.admission.check()  # before the body is read
    settings = state.settings
    return await read_body(request, max_body_bytes=settings.max_body_bytes, deadline_ms=settings.deadline_ms)


async def _work(request: Request, work: Callable[[SearchEngine], Response]) -> Response:
    """Let a thread work, which reads the body and writes the answer too: both may take long."""
    with _state(request).admission.enter(), _holder(request).lease() as engine:
        _tell_legs(request, engine)
        return await _in_thread(engine, _clock(request), lambda: work(engine))


async def _in_thread(engine: SearchEngine, clock: StageClock, work: Callable[[], T]) -> T:
    """Run `work` in a thread of the engine. DeadlineError at the service's own deadline; the abandoned work goes on."""
    call, deadline_ms = engine.submit(work), engine.settings.deadline_ms
    try:
        async with asyncio.timeout(clock.arrived + deadline_ms / 1e3 - perf_counter()) as deadline:
            return await asyncio.wrap_future(call.future)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        call.give_up()
        raise DeadlineError(f"The request was not answered within {deadline_ms:g} ms. Ask for less.") from error


def _tell_legs(request: Request, engine: SearchEngine) -> None:
    """Add the legs and their backends to the log line."""
    request.scope["state"]["about"]["legs"] = {name: leg.backend for name, leg in engine.parts.legs.items()}
