"""How a route admits a request and answers it in a thread of the engine."""

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from lightretriever.service.collections.swap import EngineHolder
from lightretriever.service.errors import DeadlineError
from lightretriever.service.http.api_keys import KeyScope
from lightretriever.service.http.cost import LIGHT
from lightretriever.service.http.json import JSON, read_body
from lightretriever.service.http.state import AppState
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import EmbeddingsRequest, EncodeRequest, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.parts import HEAVY, REQUESTS

__all__ = [
    "COLLECTION",
    "answered",
    "begin",
    "charge",
    "clock_of",
    "engine_of",
    "enter",
    "holder_of",
    "in_thread",
    "state_of",
    "tell_legs",
    "weighed",
]

T = TypeVar("T")
Asked = TypeVar("Asked", SearchRequest, EncodeRequest, EmbeddingsRequest)
COLLECTION: Final = "collection"
"""Where the state of a request has the name of the collection that its path names."""


def engine_of(request: Request) -> SearchEngine:
    """Give the engine that serves now."""
    return holder_of(request).engine


def holder_of(request: Request) -> EngineHolder:
    """Give the holder of the collection that the request names, or else of the first."""
    state = state_of(request)
    name = request.scope["state"].get(COLLECTION)
    return state.holder if name is None else state.collections.of(name)


def state_of(request: Request) -> AppState:
    """Give the state of the application."""
    state: AppState = request.app.state
    return state


def enter(request: Request, scope: KeyScope) -> None:
    """Let the request in, and keep who asks for what is charged later."""
    state, authorization = request.scope["state"], request.headers.get("authorization", "")
    about = state["about"]
    collection = holder_of(request).name
    state["caller"] = state_of(request).access.enter(scope, authorization, about["client"], about, collection)


def charge(request: Request, cost: int) -> None:
    """Charge who asks, in the limit on the rate, for a request that costs as much as `cost` searches."""
    state_of(request).access.charge(request.scope["state"]["caller"], cost)


def clock_of(request: Request) -> StageClock:
    """Give the clock that began when the request came."""
    clock: StageClock = request.scope["state"]["clock"]
    return clock


async def begin(request: Request, scope: KeyScope = "search", media: str = JSON) -> bytes:
    """Admit the request and read its body, which has a media type."""
    enter(request, scope)
    state = state_of(request)
    state.admission.check()  # before the body is read
    settings = state.settings
    most, deadline_ms = settings.max_body_bytes, settings.deadline_ms
    return await read_body(request, max_body_bytes=most, deadline_ms=deadline_ms, media=media)


async def answered(request: Request, work: Callable[[SearchEngine], Response], *, extra_s: float = 0.0) -> Response:
    """Let a thread work, which reads the body and writes the answer too: both may take long. It may take `extra_s` more
    than a search."""
    with state_of(request).admission.enter(), holder_of(request).lease() as engine:
        tell_legs(request, engine)
        return await in_thread(engine, clock_of(request), lambda: work(engine), extra_s)


async def weighed(
    request: Request,
    read: Callable[[], Asked],
    cost_of: Callable[[Asked], int],
    work: Callable[[SearchEngine, Asked], Response],
) -> Response:
    """Let a thread read a request, and answer it if it costs little; what costs more is answered in the lane of heavy
    requests. TooCostlyError or OverloadedError if that has no room for it."""
    admission, clock, about = state_of(request).admission, clock_of(request), request.scope["state"]["about"]
    with admission.enter(), holder_of(request).lease() as engine:
        tell_legs(request, engine)

        def begin() -> Response | tuple[int, Callable[[], Response]]:
            asked = read()
            about["cost"] = cost = cost_of(asked)
            if cost <= LIGHT:
                charge(request, cost)
                return work(engine, asked)
            engine.check(asked)  # a wrong field is told before the cost
            return cost, partial(work, engine, asked)

        found = await in_thread(engine, clock, begin)
        if isinstance(found, Response):
            return found
        cost, answer = found
        with admission.enter_heavy(cost):
            charge(request, cost)
            return await in_thread(engine, clock, answer, lane=HEAVY)


async def in_thread(
    engine: SearchEngine, clock: StageClock, work: Callable[[], T], extra_s: float = 0.0, lane: str = REQUESTS
) -> T:
    """Run `work` in a thread of one of the engine's lanes. DeadlineError `extra_s` after the service's own
    deadline; the abandoned work goes on."""
    call, deadline_ms = engine.submit(work, lane), engine.settings.deadline_ms + extra_s * 1e3
    try:
        async with asyncio.timeout(clock.arrived + deadline_ms / 1e3 - perf_counter()) as deadline:
            return await asyncio.wrap_future(call.future)
    except TimeoutError as error:
        if not deadline.expired():
            raise
        call.give_up()
        raise DeadlineError(f"The request was not answered within {deadline_ms:g} ms. Ask for less.") from error


def tell_legs(request: Request, engine: SearchEngine) -> None:
    """Add the legs and their backends to the log line."""
    request.scope["state"]["about"]["legs"] = {name: leg.backend for name, leg in engine.parts.backends.legs.items()}
