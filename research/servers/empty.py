"""A route that does nothing, behind the same server as the service: what HTTP itself costs.

python -m research.servers.empty --port 8081
"""

import argparse
import sys
from collections.abc import Callable, Sequence

from lightretriever.loadtest.process import add_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from research.servers.minimal_server import lifespan_of, serve

__all__ = ["application", "main"]


def application(on_ready: Callable[[], None]) -> Starlette:
    """Make the application; `on_ready` is called when it takes requests."""

    async def answer(request: Request) -> Response:
        await request.body()
        return Response(b"{}", media_type="application/json")

    return Starlette(routes=[Route("/search", answer, methods=["POST"])], lifespan=lifespan_of(on_ready))


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    parser = argparse.ArgumentParser(description="An empty route.")
    add_address(parser)
    given = parser.parse_args(arguments)
    serve(application, "an empty route", host=given.host, port=given.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
