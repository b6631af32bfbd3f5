"""The web application around a search engine: its routes, and what every request has, which is an id, headers of its
answer, metric, trace, log line, and a problem for an error."""

import asyncio
import logging
import os
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightretriever.service import errors
from lightretriever.service.collections.collections import DEFAULT, Collections, EngineHolder
from lightretriever.service.execution.watching import WatchedFile
from lightretriever.service.http.handling import COLLECTION, AppState
from lightretriever.service.http.json import problem_response
from lightretriever.service.http.openapi import description
from lightretriever.service.http.routes import router, served
from lightretriever.service.observability.metrics import Metrics, StageClock
from lightretriever.service.search.engine import SearchEngine

if TYPE_CHECKING:
    from lightretriever.service.http.tracing import Tracing

_log = logging.getLogger(__name__)
_access_log = logging.getLogger("lightretriever.access")
_WARM_UP_PAUSE_S: Final = 1.0
_COLLECTOR: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_MIN_GZIPPED: Final = 16_384  # bytes; packing takes longer than sending fewer
_GZIP_LEVEL: Final = 1
_BELOW: Final = re.compile(r"(?P<prefix>/collections/(?P<name>[^/]+))(?P<rest>/|$)")
_MIN_IN_THREAD: Final = 32_768  # bytes; up to here it takes less than a hop to a thread and back
_CLIENT_CLOSED: Final = 499  # nginx's status for a client that disconnected
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS: Final = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_CSP: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_MAX_PATH: Final = 200
_MAX_ADDRESS: Final = 45


def create_app(
    source: SearchEngine | Collections,
    *,
    on_ready: Callable[[], None] = lambda: None,
    on_stopped: Callable[[], None] = lambda: None,
) -> "Application":
    """Make the application that serves collections, or an engine alone, which the caller closes.

    `on_ready` is called after the warm-up, `on_stopped` at the end. SettingsError if the file of API keys can't be
    used, or if the environment names a collector of traces and the packages are missing.
    """
    collections = source if isinstance(source, Collections) else Collections({DEFAULT: EngineHolder(source)})
    state = AppState(collections, _tracing())
    described = description(router.routes, state.settings)

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        stop = Event()
        for holder in collections:
            holder.start()
        rules = (holder.engine.parts.rules for holder in collections)
        watched = [*state.watched, *(file for file in rules if file is not None)]
        tasks = [
            asyncio.create_task(_every_second(watched, collections.first.metrics)),
            asyncio.create_task(_warm_up(collections, stop, on_ready)),
        ]
        try:
            yield
        finally:
            stop.set()
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            for holder in collections:
                holder.stop()
            if state.tracing is not None:
                await asyncio.to_thread(state.tracing.close)
            on_stopped()

    # FastAPI's own application would add six layers, all redundant here.
    routes = [*served(), Route("/openapi.json", lambda _: JSONResponse(described))]
    app = _Router(routes, redirect_slashes=False, lifespan=lifespan)
    return Application(GZipMiddleware(app, _MIN_GZIPPED, _GZIP_LEVEL, _MIN_IN_THREAD), state)


class Application:
    """The ASGI application: another one, with what every request and answer has."""

    def __init__(self, app: ASGIApp, state: AppState) -> None:
        self.state = state
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan."""
        scope["app"] = self
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = self.state
        metrics, answer = state.collections.first.metrics, _Answer(scope, send)
        clock = StageClock(answer.arrived, None if state.tracing is None else [])
        scope.setdefault("state", {}).update(clock=clock, request_id=answer.request_id, log_fields=answer.log_fields)
        metrics.in_flight.inc()
        try:
            await self._app(scope, receive, answer)
        except ClientDisconnect:
            answer.status = _CLIENT_CLOSED
        except asyncio.CancelledError:
            answer.status = _CLIENT_CLOSED
            raise
        except Exception as error:
            refusal = error
            if not isinstance(refusal, errors.ServiceError):
                fields = {"request_id": answer.request_id, "error": type(error).__name__}
                _access_log.error("request failed", exc_info=error, extra=fields)
                if answer.status:
                    raise  # part of the answer was sent: the server must close the connection
                refusal = errors.InternalError("The reason is in the log, under this request id.")
            if isinstance(refusal, errors.OverloadedError):
                await asyncio.sleep(state.admission.pause(perf_counter()))
            metrics.errors.labels(refusal.kind).inc()
            problem = problem_response(refusal, instance=scope["path"], request_id=answer.request_id)
            await problem(scope, receive, answer)
        finally:
            metrics.in_flight.dec()
            route = getattr(scope.get("route"), "path", "unknown")
            if state.tracing is not None:
                answer.log_fields["trace_id"] = state.tracing.record(scope, clock, route, answer.status)
            answer.close(route, metrics)


class _Answer:
    """Sends the answer to a request, and records its status and time."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.arrived = perf_counter()
        sent_id = Headers(scope=scope).get("x-request-id", "")
        # The id only tells requests apart; it may be guessable.
        self.request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else f"{random.getrandbits(64):016x}"
        self.status = 0
        """Status of the answer; 0 before the answer begins."""
        self.log_fields: dict[str, Any] = {
            "request_id": self.request_id,
            "method": scope["method"],
            "path": errors.shortened(scope["path"], _MAX_PATH),
            "client": errors.shortened((scope.get("client") or ("",))[0].removeprefix("::ffff:"), _MAX_ADDRESS),
        }
        """The fields of the log line, to which others are added, such as the legs and their backends."""
        self._seconds: float | None = None
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self._seconds = message["status"], perf_counter() - self.arrived
            headers = [*message["headers"], *_HEADERS, (b"x-request-id", self.request_id.encode())]
            if not any(name == _CSP[0] for name, _ in headers):
                headers.append(_CSP)
            message = {**message, "headers": headers}
        await self._send(message)

    def close(self, route: str, metrics: Metrics) -> None:
        """Observe the request's time under its route's pattern, and write the access line, without the query."""
        seconds = perf_counter() - self.arrived if self._seconds is None else self._seconds
        metrics.request(route, self.status).observe(seconds)
        self.log_fields["status"], self.log_fields["ms"] = self.status, round(seconds * 1e3, 3)
        _access_log.info("request", extra=self.log_fields)


class _Router(Router):
    """Serves every route below `/collections/NAME` too, for that collection. Raises the service's own errors."""

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if (moved := _below_collection(scope)) is not None:
                await moved(scope, receive, send)
            else:
                await super().app(scope, receive, send)
        except HTTPException as error:
            raise _routing_error(scope, error.status_code) from error


def _below_collection(scope: Scope) -> Response | None:
    """Note the collection that a path names, and leave the rest of the path to the routes; NotFoundError.
    A path that ends with the name is redirected, as the page's relative addresses need the slash."""
    root = scope.get("root_path", "")
    match = _BELOW.match(scope["path"].removeprefix(root)) if scope["type"] == "http" else None
    if match is None:
        return None
    name = scope["app"].state.collections.of(match["name"]).name
    scope["state"][COLLECTION] = scope["state"]["log_fields"][COLLECTION] = name
    scope["root_path"] = root + match["prefix"]
    query = scope["query_string"].decode("latin-1")
    return None if match["rest"] else RedirectResponse(f"{name}/{'?' if query else ''}{query}")


def _tracing() -> "Tracing | None":
    """Open tracing if OpenTelemetry's variables name a collector; otherwise its packages are not loaded."""
    variable = next(filter(os.environ.get, _COLLECTOR), None)
    if variable is None:
        return None
    try:
        from lightretriever.service.http.tracing import Tracing
    except ModuleNotFoundError as error:
        raise errors.SettingsError(
            f"{variable} in the environment is set, but the package of {error.name!r} is not installed.",
            remedy="Install the extra: pip install 'lightretriever-search[tracing]', or unset it.",
        ) from error
    return Tracing()


async def _every_second(files: Sequence[WatchedFile[Any]], metrics: Metrics) -> None:
    """Look at files, and then set the gauges, for the other processes, until cancelled. Keys are read again also where
    metrics can't be written."""
    while True:
        try:
            for file in files:
                await asyncio.to_thread(file.look)
            metrics.refresh()
        except Exception:  # go on
            _log.exception("files and metrics are not up to date")
        await asyncio.sleep(1.0)


async def _warm_up(collections: Collections, stop: Event, on_ready: Callable[[], None]) -> None:
    cold = list(collections)
    while cold:
        try:
            with cold[0].lease() as engine:
                await asyncio.to_thread(engine.warm_up, stop)
        except Exception as error:  # try again, as long as the service runs
            _log.error("warm-up failed: %s", error, exc_info=not isinstance(error, errors.ServiceError))
            await asyncio.sleep(_WARM_UP_PAUSE_S)
        else:
            cold.pop(0)
    on_ready()


def _routing_error(scope: Scope, status: int) -> errors.ServiceError:
    if status == HTTPStatus.NOT_FOUND:
        return errors.NotFoundError("There is no such path. The paths are listed at /openapi.json.")
    there = (route for route in scope["router"].routes if route.matches(scope)[0] != Match.NONE)
    allowed = ", ".join(sorted({method for route in there for method in route.methods}))
    refused = errors.MethodNotAllowedError(f"{scope['method']} is not possible here, only {allowed}.")
    refused.headers = {"allow": allowed}
    return refused
