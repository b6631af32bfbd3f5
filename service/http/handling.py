"""How a route admits a request and answers it, in the event loop or in a thread of the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from lightretriever.service.collections.swap import EngineHolder
from lightretriever.service.errors import DeadlineError, NotFoundError
from lightretriever.service.http.api_keys import KeyScope
from lightretriever.service.http.json import JSON, json_response, read_body
from lightretriever.service.http.lanes import LIGHT_S, is_light
from lightretriever.service.http.state import AppState
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import Plain, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.parts import REQUESTS

__all__ = [
    "COLLECTION",
    "admitted",
    "answered",
    "begin",
    "clock_of",
    "enter",
    "holder_of",
    "in_thread",
    "search_answered",
    "state_of",
]

T = TypeVar("T")
COLLECTION: Final = "collection"
"""Where the state of a request has the name of the collection that its path names."""


def holder_of(request: Request) -> EngineHolder:
    """Return the holder of the collection that the request names, or else of the first."""
    return state_of(request).collections.of(request.scope["state"].get(COLLECTION))


def state_of(request: Request) -> AppState:
    """Return the state of the application."""
    state: AppState = request.app.state
    return state


def enter(request: Request, scope: KeyScope) -> None:
    """Admit the request, whose API key needs the scope. UnauthorizedError, ForbiddenError. Without keys, searching is
    open to all and the scope `admin` gives NotFoundError."""
    if (keys := state_of(request).keys) is not None:
        authorization = request.headers.get("authorization", "")
        request.scope["state"]["log_fields"]["key"] = keys.name(authorization, scope, holder_of(request).name)
    elif scope == "admin":
        raise NotFoundError("The admin routes are off without API keys. Name their file, 'api_keys_file'.")


def clock_of(request: Request) -> StageClock:
    """Return the clock that began when the request came."""
    clock: StageClock = request.scope["state"]["clock"]
    return clock


async def begin(request: Request, scope: KeyScope = "search", media: str = JSON) -> bytes:
    """Admit the request and read its body, which has a media type. OverloadedError before that, if there is no room:
    the body is read outside of `admitted`, so that slow clients take no places."""
    enter(request, scope)
    state = state_of(request)
    state.admission.check()
    settings = state.settings
    limit, deadline_ms = settings.max_body_bytes, settings.deadline_ms
    return await read_body(request, max_body_bytes=limit, deadline_ms=deadline_ms, media=media)


@asynccontextmanager
async def admitted(request: Request) -> AsyncIterator[SearchEngine]:
    """Use the serving engine, which stays open until the block ends. OverloadedError if there is no room."""
    with state_of(request).admission.enter(), holder_of(request).lease() as engine:
        legs = {name: leg.backend for name, leg in engine.parts.backends.legs.items()}
        request.scope["state"]["log_fields"]["legs"] = legs
        yield engine


async def answered(request: Request, work: Callable[[SearchEngine, StageClock], BaseModel | Plain]) -> Response:
    """Answer with the result of `work` in a thread, which also reads the body and writes the answer."""
    clock = clock_of(request)
    async with admitted(request) as engine:
        return await in_thread(engine, clock, lambda: json_response(work(engine, clock)))


async def search_answered(request: Request, read: Callable[[], SearchRequest], *, small: bool = True) -> Response:
    """Answer a search in the event loop if it is light, else in a thread, which reads what is not `small`, too."""
    clock = clock_of(request)
    async with admitted(request) as engine:
        recent = state_of(request).recent(holder_of(request).name)

        def answer(search: SearchRequest) -> Response:
            return json_response(engine.answer(search, clock))

        if not small:
            return await in_thread(engine, clock, lambda: answer(read()))
        search = read()
        if not is_light(search, engine):
            return await in_thread(engine, clock, lambda: answer(search))
        if recent.seconds > LIGHT_S:
            return await in_thread(engine, clock, lambda: recent.measure(lambda: answer(search), clock))
        await asyncio.sleep(0)  # others that came at the same time are counted, or refused, before this one is answered
        return recent.measure(lambda: answer(search), clock)


async def in_thread(
    engine: SearchEngine, clock: StageClock, work: Callable[[], T], extra_s: float = 0.0, lane: str = REQUESTS
) -> T:
    """Run `work` in a thread. DeadlineError `extra_s` after the service's own deadline; the abandoned work goes on."""
    call, deadline_ms = engine.submit(work, lane), engine.settings.deadline_ms + extra_s * 1e3
    try:
        async with asyncio.timeout(clock.arrived + deadline_ms / 1e3 - perf_counter()) as deadline:
            return await asyncio.wrap_future(call.future)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        call.give_up()
        raise DeadlineError(f"The request was not answered within {deadline_ms:g} ms. Ask for less.") from error
