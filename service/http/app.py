"""The web application around a search engine."""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Match, Route, Router
from starlette.types import Receive, Scope, Send

from lightretriever.service import errors
from lightretriever.service.collections.collections import DEFAULT, Collections, EngineHolder
from lightretriever.service.execution.watching import WatchedFile
from lightretriever.service.http.handling import COLLECTION, AppState
from lightretriever.service.http.middleware import Application
from lightretriever.service.http.openapi import description
from lightretriever.service.http.routes import router, served
from lightretriever.service.observability.metrics import Metrics
from lightretriever.service.search.engine import SearchEngine

if TYPE_CHECKING:
    from lightretriever.service.http.tracing import Tracing

_log = logging.getLogger(__name__)
_WARM_UP_PAUSE_S: Final = 1.0
_COLLECTOR: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_MIN_GZIPPED: Final = 16_384  # bytes; packing takes longer than sending fewer
_GZIP_LEVEL: Final = 1
_BELOW: Final = re.compile(r"(?P<prefix>/collections/(?P<name>[^/]+))(?P<rest>/|$)")
_MIN_IN_THREAD: Final = 32_768  # bytes; up to here it takes less than a hop to a thread and back


def create_app(
    source: SearchEngine | Collections,
    *,
    on_ready: Callable[[], None] = lambda: None,
    on_stopped: Callable[[], None] = lambda: None,
) -> Application:
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
