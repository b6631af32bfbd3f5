"""How a route admits a request, if there is room, and answers it: light searches in the event loop, everything else in
a pool of threads.

A hand-over to a thread and back costs more than a light search gains by it, as Python runs one thread at a time. But a
call in the event loop can't be abandoned: while something of a collection is slow or hangs, all go to the threads.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from lightretriever.service.collections.collections import Collections, EngineHolder
from lightretriever.service.errors import DeadlineError, NotFoundError, OverloadedError
from lightretriever.service.execution.watching import WatchedFile
from lightretriever.service.http.api_keys import ApiKeys, KeyScope
from lightretriever.service.http.json import JSON, json_response, read_body
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import Plain, SearchRequest
from lightretriever.service.search.engine import REQUESTS, SearchEngine
from lightretriever.service.search.filters import count_values
from lightretriever.service.search.request import candidates_of

if TYPE_CHECKING:
    from lightretriever.service.http.tracing import Tracing

T = TypeVar("T")
COLLECTION: Final = "collection"
"""Where the state of a request has the name of the collection that its path names."""
_REFUSALS: Final = 400
"""Refusals a second, so that clients that try again at once leave the processor to those that are admitted."""

_MAX_PAUSE_S: Final = 1.0

LIGHT_S: Final = 0.005
"""Light searches are answered in the event loop as long as they take less than so many seconds of a processor."""
STALL_S: Final = 0.5
"""After a search that took so many seconds by the clock, the next goes to a thread: it may have waited for a disk."""
MAX_LIGHT_BYTES: Final = 4096
"""Largest body of a light search."""

_MAX_CHARACTERS: Final = 500
_MAX_HITS: Final = 100
_MAX_VALUES: Final = 50  # of a filter
_LEG_FIELDS: Final = {"query", "mode", "task", "fusion", "candidates", "filter"}
_PAGE_FIELDS: Final = {"k", "offset", "fields", "deadline_ms", "allow_partial"}
_HEAVY_FIELDS: Final = tuple(SearchRequest.model_fields.keys() - _LEG_FIELDS - _PAGE_FIELDS)
_SHARE: Final = 1 / 16


class Admission:
    """Counts the requests that are `admitted`, of a `limit`. Asked in the event loop alone, so it needs no lock."""

    def __init__(self, working: int, waiting: int) -> None:
        self.limit, self.waiting, self.admitted = working + waiting, waiting, 0
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


class Recent:
    """The processor time of a collection's light searches: a moving average over some 16, in seconds."""

    def __init__(self) -> None:
        self.seconds = float("inf")
        """Infinite before the first one, and after one that took `STALL_S`."""

    def measure(self, answer: Callable[[], T], clock: StageClock) -> T:
        """Answer a search and count its processor time, with that of the calls that it handed to other threads. Short
        waits for Python's lock or for a processor are no property of a search."""
        started, began = perf_counter(), thread_time()
        try:
            return answer()
        finally:
            took = thread_time() - began + clock.handed_s
            mean = self.seconds if self.seconds < float("inf") else took
            stalled = perf_counter() - started >= STALL_S
            self.seconds = float("inf") if stalled else mean + _SHARE * (took - mean)


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
        self.recent: defaultdict[str, Recent] = defaultdict(Recent)


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
        request.scope["state"]["log_fields"]["legs"] = engine.parts.backends.legs
        yield engine


async def answered(request: Request, work: Callable[[SearchEngine, StageClock], BaseModel | Plain]) -> Response:
    """Answer with the result of `work` in a thread, which also reads the body and writes the answer."""
    clock = clock_of(request)
    async with admitted(request) as engine:
        return await in_thread(engine, clock, lambda: json_response(work(engine, clock)))


def is_light(request: SearchRequest, engine: SearchEngine) -> bool:
    """True if a search is plain, filtered or fused, of few hits and words, and the engine neither waits for a cluster
    or a reranking model nor replays what others write, and has no call that hangs."""
    parts, settings = engine.parts, engine.settings
    return (
        request.query is not None
        and len(request.query) <= _MAX_CHARACTERS
        and not any(getattr(request, name) for name in _HEAVY_FIELDS)
        and request.offset + request.k <= _MAX_HITS
        and candidates_of(request, settings) <= max(settings.candidates, _MAX_HITS)
        and (request.filter is None or count_values(request.filter) <= _MAX_VALUES)
        and parts.backends.cluster is None
        and parts.backends.live is None
        and not parts.executor.abandoned
        and (parts.reranker is None or request.rerank is False)
    )


async def search_answered(request: Request, read: Callable[[], SearchRequest], *, small: bool = True) -> Response:
    """Answer a search in the event loop if it is light, else in a thread, which reads what is not `small`, too."""
    clock = clock_of(request)
    async with admitted(request) as engine:
        recent = state_of(request).recent[holder_of(request).name]

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
