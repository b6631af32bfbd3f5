"""A minimal HTTP route around a search function, for systems without one: `POST /search` with `query` and `k`.

The same server, event loop, parser and JSON library as the service; no validation beyond types, no deadlines, no log.
"""

import asyncio
import socket
from argparse import Namespace
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.program import ADDRESS, BUNDLE, Main, option, program
from lightretriever.service.execution.memory import freeze_gc

__all__ = ["SYSTEM", "Hits", "Search", "application", "lifespan_of", "serve", "serve_system"]

Hits = list[dict[str, Any]]
"""`id`, `rank` from 1, `score`, `fields`; best first."""
Search = Callable[[str, int], Hits]
"""Finds the best documents for a query. Called from several threads at once."""

SYSTEM: Final = (
    BUNDLE,
    option("--work", Path, "folder for the index"),
    option("--build", False, "make the index, print its folder, and end"),
    *ADDRESS,
)
"""The options of a system's program."""

_THREADS: Final = 8
_BACKLOG: Final = 2048
_GRACE_S: Final = 10


def lifespan_of(on_ready: Callable[[], None]) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Give an application threads for its requests, and call `on_ready` when it takes them."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="request") as executor:
            app.state.executor = executor
            on_ready()
            yield

    return lifespan


def application(search: Search, on_ready: Callable[[], None]) -> Starlette:
    """Make the application around a search; `on_ready` is called when it takes requests."""

    async def answer(request: Request) -> Response:
        try:
            body = orjson.loads(await request.body())
            query, k = body["query"], body.get("k", 10)
            if not (isinstance(query, str) and type(k) is int and k > 0):
                raise TypeError(f"query is {query!r}, k is {k!r}")
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            return _json({"error": f'send {{"query": "…", "k": 10}}: {error}'}, 422)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(request.app.state.executor, lambda: _json({"hits": search(query, k)}))

    return Starlette(routes=[Route("/search", answer, methods=["POST"])], lifespan=lifespan_of(on_ready))


def serve(make: Callable[[Callable[[], None]], Starlette], what: str, *, host: str, port: int) -> None:
    """Serve an application until SIGTERM or SIGINT; port 0 takes a free one. Prints `what` and the address on stdout
    when it takes requests, which is when the application calls the function that `make` gets."""
    with socket.create_server((host, port), backlog=_BACKLOG) as listener:
        url = f"http://{host}:{listener.getsockname()[1]}"

        def ready() -> None:
            freeze_gc()
            print(f"Ready: {what} at {url}", flush=True)

        config = uvicorn.Config(
            make(ready),
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=_GRACE_S,
        )
        uvicorn.Server(config).run(sockets=[listener])


def serve_system(
    name: str,
    build: Callable[[Bundle, Path], Path],
    opened: Callable[[Bundle, Path], AbstractContextManager[Search]],
) -> Main:
    """Make the program of a system over a bundle, which serves until SIGTERM.

    `build` indexes the bundle's documents below the folder `--work`, unless the index exists, and gives its path;
    `opened` opens it. With `--build` the program only builds the index.
    """

    def main(given: Namespace) -> None:
        """Serve until SIGTERM."""
        bundle = Bundle.open(given.bundle)
        index = build(bundle, given.work)
        if given.build:
            print(index)
            return
        with opened(bundle, index) as search:
            what = f"{name} with {bundle.manifest.documents} documents"
            serve(partial(application, search), what, host=given.host, port=given.port)

    main.__module__ = opened.__module__  # the system, by which the program is named
    return program(*SYSTEM)(main)


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")
