"""How a route admits a request, if there is room, and answers it, in the event loop or in a thread of the engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from lightretriever.service.collections.collections import Collections, EngineHolder
from lightretriever.service.errors import DeadlineError, NotFoundError, OverloadedError
from lightretriever.service.execution.watching import WatchedFile
from lightretriever.service.http.api_keys import ApiKeys, KeyScope
from lightretriever.service.http.json import JSON, json_response, read_body
from lightretriever.service.http.lanes import LIGHT_S, Recent, is_light
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import Plain, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.parts import REQUESTS

if TYPE_CHECKING:
    from lightretriever.service.http.tracing import Tracing

T = TypeVar("T")
COLLECTION: Final = "collection"
"""Where the state of a request has the name of the collection that its path names."""

_REFUSALS: Final = 400
"""Refusals a second, so that clients that try again at once leave the processor to those that are admitted."""

_MAX_PAUSE_S: Final = 1.0


class Admission:
    """Counts the requests that are `admitted`, of a `limit`. Asked in the event loop alone, so it needs no lock."""

    def __init__(self, working: int, waiting: int) -> None:
        self.limit = working + waiting
        self.waiting = waiting
        self.admitted = 0
        self._refused = 0.0

    def pause(self, now: float) -> float:
        """Return the seconds, at most `_MAX_PAUSE_S`, after which to answer a refusal of the time `now` in seconds."""
        self._refused = min(max(self._refused + 1 / _REFUSALS, now), now + _MAX_PAUSE_S)
        return self._refused - now

    def check(self) -> None:
        """Raise OverloadedError if there is no room for another request."""
        if self.admitted >= self.limit:
            raise OverloadedError(f"{self.waiting} requests wait already (max_waiting). Try again in a moment.")

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a request in the block. OverloadedError if there is no room."""
        self.check()
        self.admitted += 1
        try:
            yield
        finally:
            self.admitted -= 1


class AppState:
    """What requests share."""

    def __init__(self, collections: Collections, tracing: "Tracing | None") -> None:
        """SettingsError if the file of API keys can't be used."""
        self.collections = collections
        settings = self.settings = collections.first.settings
        self.keys = None if settings.api_keys_file is None else ApiKeys(settings.api_keys_file)
        self.admission = Admission(settings.threads(), settings.max_waiting)
        self.tracing = tracing
        self.watched: list[WatchedFile[Any]] = [] if self.keys is None else [self.keys]
        """Files that are read again when they change, beside the rules of collections."""

        self._recent: dict[str, Recent] = {}

    def recent(self, collection: str) -> Recent:
        """Return how long the light searches of a collection took lately."""
        return self._recent.setdefault(collection, Recent())


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
    state_of(request).admission.check()
    return await read_body(request, media)


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
