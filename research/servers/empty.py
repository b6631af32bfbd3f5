"""A route that does nothing, behind the same server as the service: what HTTP itself costs.

python -m research.servers.empty --port 8081
"""

import sys
from argparse import Namespace
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lightretriever.loadtest.program import ADDRESS, program
from research.servers.minimal_server import lifespan_of, serve

__all__ = ["application", "main"]


def application(on_ready: Callable[[], None]) -> Starlette:
    """Make the application; `on_ready` is called when it takes requests."""

    async def answer(request: Request) -> Response:
        await request.body()
        return Response(b"{}", media_type="application/json")

    return Starlette(routes=[Route("/search", answer, methods=["POST"])], lifespan=lifespan_of(on_ready))


@program(*ADDRESS)
def main(given: Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    serve(application, "an empty route", host=given.host, port=given.port)


if __name__ == "__main__":
    sys.exit(main())
