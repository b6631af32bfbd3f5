"""A part of the service's way through HTTP, with an answer that is there already.

    python -m lightretriever.loadtest.servers.layers LAYER BUNDLE --query TEXT --port 0

The answer is that of one search, made at the start. See `LAYERS` for what is between it and the client.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import uvloop
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.loadtest.servers import thin, trivial
from lightretriever.service.execution.crew import Crew
from lightretriever.service.execution.jobs import Job, Steps
from lightretriever.service.execution.waiting import Done
from lightretriever.service.http.app import create_app
from lightretriever.service.http.fastpath.handoff import answer
from lightretriever.service.http.json import json_response
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.observability.metrics import Mark
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.hits import Plain
from lightretriever.service.search.operations import Errands
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["LAYERS", "main"]

LAYERS: Final = {
    "parser": ("event loop, parser and socket: uvloop and httptools by themselves", None),
    "uvicorn": ("uvicorn, and an application that reads the body", "parser"),
    "thread": ("a thread is handed the work, and hands it back", "uvicorn"),
    "routes": ("the service's routes: checks, ids, headers, metrics, log line, the answer as JSON", "thread"),
    "service": ("the service as it is: a plain search takes a shorter way", "parser"),
}
"""What each layer has, and the one that it adds to."""


class _Application:
    """Answers all requests alike, in the event loop or by way of a thread."""

    def __init__(self, response: Response, crew: Crew | None) -> None:
        self._response = response
        self._crew = crew

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await receive()
        response = self._response if self._crew is None else await answer(self._begin, lambda _: self._response)
        await response(scope, receive, send)

    def _begin(self, done: Done) -> list[Job[Any]]:
        if self._crew is not None:
            self._crew.put(lambda: done(None, None))
        return []


class _Remembered(Errands):
    """Every search is answered already."""

    answer: Plain

    def search(
        self, request: SearchRequest, *, arrived: float | None = None, marks: list[Mark] | None = None
    ) -> Steps[Plain]:
        """Give the answer."""
        yield from ()
        return self.answer


def _serve(layer: str, engine: SearchEngine, query: str, host: str, port: int) -> None:
    found = engine.search(SearchRequest(query=query)).model_dump()
    response = json_response(found)
    if layer == "parser":
        uvloop.run(trivial.serve(host, port, bytes(response.body)))
    elif layer in ("routes", "service"):
        remembered = _Remembered(engine.bundle.manifest, engine.settings, engine.parts, engine.metrics)
        remembered.answer = found
        engine.errands = remembered
        if layer == "service":
            thin.serve_engine(engine, layer, host=host, port=port)
        else:
            thin.serve(lambda ready: create_app(engine, on_ready=ready), layer, host=host, port=port)
    else:
        crew = Crew("layer", 1) if layer == "thread" else None
        thin.serve(lambda ready: _announced(_Application(response, crew), ready), layer, host=host, port=port)
        if crew is not None:
            crew.close()


def _announced(app: ASGIApp, ready: Any) -> ASGIApp:
    """The application, which is ready when the server asks it to begin."""

    async def begun(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            ready()
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await app(scope, receive, send)

    return begun


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; returns the exit status."""
    parser = argparse.ArgumentParser(description="A part of the service's way through HTTP.")
    parser.add_argument("layer", choices=LAYERS)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--query", required=True, help="the query that is answered")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args(arguments)
    configure_logging("info")
    try:
        with SearchEngine.open(Bundle.open(given.bundle)) as engine:
            engine.warm_up()
            _serve(given.layer, engine, given.query, given.host, given.port)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
