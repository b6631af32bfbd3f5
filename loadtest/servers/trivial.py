"""A server that answers everything at once: what a load generator reaches against it is the generator's own limit.

python -m lightretriever.loadtest.servers.trivial --port 0
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import cast

import httptools
import uvloop

__all__ = ["main", "serve"]

_BODY = b'{"hits":[],"degraded":[]}'


class _Instant(asyncio.Protocol):
    def __init__(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._answer = head % len(body) + body
        self._transport: asyncio.WriteTransport | None = None
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are no subclasses

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._transport is not None:
            self._transport.write(self._answer)


async def serve(host: str, port: int, body: bytes = _BODY) -> None:
    """Answer every request with this JSON, until SIGTERM."""
    server = await asyncio.get_running_loop().create_server(lambda: _Instant(body), host, port)
    print(f"Ready: the trivial server at http://{host}:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description="A server that answers everything at once.")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args(arguments)
    uvloop.run(serve(given.host, given.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
