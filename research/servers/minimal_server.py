"""A minimal HTTP route around a search function, for systems without one: `POST /search` with `query` and `k`.

The same server, event loop, parser and JSON library as the service; no validation, no deadlines, no log.
"""

import gc
import socket
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.program import ADDRESS, BUNDLE, Main, option, program

Hits = list[dict[str, Any]]
"""`id`, `rank` from 1, `score`, `fields`; best first."""
Search = Callable[[str, int], Hits]
"""Finds the best documents for a query. Called from several threads at once."""


def serve(answer: Callable[[Request], Awaitable[Response]], what: str, given: Namespace) -> None:
    """Serve `POST /search` at the `given` host and port until SIGTERM. `what` is served is printed when it is ready."""
    with socket.create_server((given.host, given.port), backlog=2048) as listener:

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            gc.freeze()
            print(f"Ready: {what} at http://{given.host}:{listener.getsockname()[1]}", flush=True)
            yield

        application = Starlette(routes=[Route("/search", answer, methods=["POST"])], lifespan=lifespan)
        config = uvicorn.Config(application, http="httptools", loop="uvloop", log_config=None, access_log=False)
        uvicorn.Server(config).run(sockets=[listener])


def _answered_by(search: Search) -> Callable[[Request], Awaitable[Response]]:
    """Make the route of a search."""

    async def answer(request: Request) -> Response:
        body = orjson.loads(await request.body())
        hits = {"hits": await run_in_threadpool(search, body["query"], body["k"])}
        return Response(orjson.dumps(hits), media_type="application/json")

    return answer


def serve_system(
    name: str, build: Callable[[Bundle, Path], Path], opened: Callable[[Bundle, Path], AbstractContextManager[Search]]
) -> Main:
    """Make the program of a system over a bundle, which serves until SIGTERM. `build` indexes the bundle's documents
    below the folder `--work`, unless the index exists, and returns its path; `opened` opens it. With `--build` the
    program only builds the index."""

    def main(given: Namespace) -> None:
        """Serve until SIGTERM."""
        bundle = Bundle.open(given.bundle)
        index = build(bundle, given.work)
        if given.build:
            print(index)
            return
        with opened(bundle, index) as search:
            serve(_answered_by(search), f"{name} with {bundle.manifest.documents} documents", given)

    main.__module__ = opened.__module__  # the system, by which the program is named
    work = option("--work", Path, "folder for the index")
    return program(BUNDLE, work, option("--build", False, "make the index, print its folder, and end"), *ADDRESS)(main)
