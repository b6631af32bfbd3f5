"""The thinnest HTTP route around a search function, for systems that bring none: `POST /search` with `query` and `k`.

Same server, event loop, parser and JSON library as the service has; no validation beyond types, no deadlines, no log.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import orjson
import uvicorn
from lightretriever.service.execution.memory import settle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

if TYPE_CHECKING:
    from lightretriever.service.search.engine import SearchEngine

__all__ = ["Hits", "Search", "application", "serve", "serve_engine", "warm_up"]

Hits = list[dict[str, Any]]
"""`id`, `rank` from 1, `score`, `fields`; best first."""
Search = Callable[[str, int], Hits]
"""Finds the best documents for a query. Called from several threads at once."""

_THREADS: Final = 8
_BACKLOG: Final = 2048
_GRACE_S: Final = 10
_WARM_UP_QUERIES: Final = 2000
_WARM_UP_S: Final = 5.0


def application(search: Search, on_ready: Callable[[], None]) -> Starlette:
    """The application around a search; `on_ready` is called when it takes requests."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="request") as executor:
            app.state.executor = executor
            on_ready()
            yield

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

    return Starlette(routes=[Route("/search", answer, methods=["POST"])], lifespan=lifespan)


def serve(make: Callable[[Callable[[], None]], ASGIApp], what: str, *, host: str, port: int) -> None:
    """Serve an application as the service is served, until SIGTERM or SIGINT; port 0 takes a free one.

    `make` is given what the application has to call when it is ready, which prints the address on stdout; `what` says
    what is served.
    """
    with socket.create_server((host, port), backlog=_BACKLOG) as listener:
        url = f"http://{host}:{listener.getsockname()[1]}"

        def ready() -> None:
            settle()
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


def serve_engine(
    engine: "SearchEngine", what: str, *, host: str, port: int, announce: Callable[[str], None] | None = None
) -> None:
    """Serve an engine of the service as the service does, until SIGTERM; otherwise like `serve`. `announce` is told the
    address instead of stdout."""
    from lightretriever.service.search.reload import Serving
    from lightretriever.service.serving import server as web  # other systems' servers have no need of it

    with socket.create_server((host, port), backlog=_BACKLOG) as listener:
        url = f"http://{host}:{listener.getsockname()[1]}"
        tell = announce or (lambda url: print(f"Ready: {what} at {url}", flush=True))
        web.serve(Serving(engine), listener, on_ready=lambda: tell(url))


def warm_up(search: Search, queries: Sequence[str]) -> None:
    """Search as often and as long as the service does before it calls itself ready."""
    until = perf_counter() + _WARM_UP_S
    for number in range(_WARM_UP_QUERIES):
        search(queries[number % len(queries)], 1)
        if perf_counter() >= until:
            return


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")
