"""The web application around a search engine."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Final

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from service.desk import Desk
from service.engine import SearchEngine
from service.errors import InternalError, MethodNotAllowedError, RouteNotFoundError, ServiceError, SettingsError
from service.http import problem_response
from service.middleware import Envelope
from service.openapi import ABOUT, complete_description
from service.routes import router, served
from service.settings import Settings
from service.swap import Serving
from service.versions import package_version

if TYPE_CHECKING:
    from service.tracing import Tracing

__all__ = ["create_app"]

_log = logging.getLogger(__name__)
_WARM_UP_PAUSE_S: Final = 1.0


def create_app(
    source: Path | SearchEngine | Serving,
    settings: Settings | None = None,
    *,
    on_ready: Callable[[], None] | None = None,
) -> FastAPI:
    """Make the application that serves a bundle.

    `source` is the folder of a bundle, opened and closed with the application, or what was opened before, which stays
    the caller's and brings its own settings: a folder as `Serving`, or an engine. `on_ready` is called after the
    warm-up. SettingsError if the file of API keys can't be used, or traces are wanted without their packages.
    """
    chosen = settings or Settings() if isinstance(source, Path) else source.settings
    app = FastAPI(
        title="LightRetriever Search",
        description=ABOUT,
        version=package_version("lightretriever-search"),
        lifespan=partial(_lifespan, source=source, settings=chosen, on_ready=on_ready),
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.router.routes.extend(served())
    app.state.desk = desk = Desk(chosen, _tracing(chosen.otlp_endpoint))
    if chosen.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=chosen.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "x-request-id", "traceparent"],
            expose_headers=["x-request-id", "retry-after"],
        )
    app.add_middleware(Envelope, metrics=lambda: desk.serving.metrics, tracing=lambda: desk.tracing)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _routing_error)
    complete_description(app, router.routes, chosen)
    return app


@asynccontextmanager
async def _lifespan(
    app: FastAPI, *, source: Path | SearchEngine | Serving, settings: Settings, on_ready: Callable[[], None] | None
) -> AsyncIterator[None]:
    serving = Serving(source) if isinstance(source, SearchEngine) else source
    if isinstance(serving, Path):
        serving = Serving.open(serving, settings)
    desk: Desk = app.state.desk
    desk.serving = serving
    # Each of these threads waits for lanes, never longer than a deadline.
    desk.executor = ThreadPoolExecutor(settings.search_threads, thread_name_prefix="request")
    stop = Event()
    serving.start()
    warm_up = asyncio.create_task(_warm_up(desk, stop, on_ready))
    try:
        yield
    finally:
        stop.set()
        warm_up.cancel()
        with suppress(asyncio.CancelledError):
            await warm_up
        serving.stop()
        if isinstance(source, Path):
            serving.close()
        desk.executor.shutdown()
        if desk.tracing is not None:
            await asyncio.to_thread(desk.tracing.close)


def _tracing(endpoint: str | None) -> "Tracing | None":
    """Open what makes traces; its packages are loaded only where they are wanted."""
    if endpoint is None:
        return None
    try:
        from service.tracing import Tracing
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"Setting 'otlp_endpoint' is set, but the package of {error.name!r} is not installed.",
            remedy="Install the extra: pip install 'lightretriever-search[tracing]'.",
        ) from error
    return Tracing.open(endpoint)


async def _warm_up(desk: Desk, stop: Event, on_ready: Callable[[], None] | None) -> None:
    while True:
        try:
            with desk.serving.current as engine:
                await asyncio.get_running_loop().run_in_executor(desk.executor, engine.warm_up, stop)
        except ServiceError as error:
            _log.error("warm-up failed: %s", error)
            await asyncio.sleep(_WARM_UP_PAUSE_S)
        else:
            break
    if on_ready is not None:
        on_ready()


async def _service_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, ServiceError):
        raise error
    return _answer(request, error)


async def _routing_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    if error.status_code == MethodNotAllowedError.status:
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        detail = f"{request.method} is not possible here" + (f", only {allowed}." if allowed else ".")
        return _answer(request, MethodNotAllowedError(detail), {"Allow": allowed})
    if error.status_code == RouteNotFoundError.status:
        return _answer(request, RouteNotFoundError("There is no such path. The paths are listed at /docs."))
    return _answer(request, InternalError(str(error.detail)))


def _answer(request: Request, error: ServiceError, headers: dict[str, str] | None = None) -> Response:
    request.app.state.desk.serving.metrics.errors.labels(error.kind).inc()
    return problem_response(error, instance=request.url.path, request_id=request.state.request_id, headers=headers)
