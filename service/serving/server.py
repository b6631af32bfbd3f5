"""The web server of one process: uvicorn over what is served, until a signal ends it."""

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import suppress
from socket import socket
from types import FrameType
from typing import Final

import uvicorn
from lightretriever.service.execution.memory import settle
from lightretriever.service.http.app import Application, create_app
from lightretriever.service.http.fastpath.connection import Connection
from lightretriever.service.http.fastpath.shortcut import Shortcut
from lightretriever.service.search.reload import Serving
from lightretriever.service.serving.acceptor import Door, Share

__all__ = ["BACKLOG", "EXIT_ERROR", "announce", "make_server", "ready_line", "serve"]

BACKLOG: Final = 2048
EXIT_ERROR: Final = 2
_KEEP_ALIVE_S: Final = 5

_log = logging.getLogger(__name__)


def ready_line(serving: Serving) -> str:
    """Say what is served."""
    manifest = serving.current.engine.bundle.manifest
    return f"Ready: {manifest.documents} documents of {manifest.name!r}"


def announce(line: str) -> None:
    """Print a line on stdout. One that nobody can read, because the disk is full or the reader gone, ends nothing."""
    with suppress(OSError):
        print(line, flush=True)


def serve(serving: Serving, listener: socket, on_ready: Callable[[], None], share: Share | None = None) -> None:
    """Answer requests until SIGTERM or SIGINT. `on_ready` is called after the warm-up; `share` is this process's of the
    connections, where several listen. Errors as in `create_app`."""

    def begin() -> None:
        settle()
        on_ready()

    serving.on_closed = settle
    server = make_server(create_app(serving, on_ready=begin), listener, share)
    # uvicorn stops gracefully and then sends itself the signal again, for whoever handled it before: nobody.
    before = {number: signal.signal(number, _already_handled) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.run(sockets=[])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _log.info("stopped")


def make_server(
    app: Application, listener: socket, share: Share | None = None, *, keep_alive_s: int = _KEEP_ALIVE_S
) -> uvicorn.Server:
    """The server of an application at a listening socket, to be run once with `sockets=[]`. Connections without a
    request are kept for `keep_alive_s`."""
    settings = app.state.desk.settings
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=settings.trusted_proxies,
        backlog=BACKLOG,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
    )
    # First, because duplicates share this flag, also those of other processes, and `dup` sets it as it is here: a
    # worker would hang in accept() when another one was faster.
    listener.setblocking(False)
    return _Server(config, Shortcut(app.state.desk), listener, share)


class _Server(uvicorn.Server):
    """uvicorn's server behind a door of our own.

    uvloop takes one connection of a socket in each turn of its event loop: under load hundreds of new ones would wait
    for seconds before their deadlines even begin. And it leaves it to chance which process takes how many.
    """

    def __init__(self, config: uvicorn.Config, shortcut: Shortcut, listener: socket, share: Share | None) -> None:
        super().__init__(config)
        self._shortcut = shortcut
        self._listener = listener
        self._share = share
        self._door: Door | None = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self._door = Door(self._listener, self._protocol, lambda: len(self.server_state.connections), self._share)

    async def on_tick(self, counter: int) -> bool:
        self._shortcut.look()
        self._tell()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        if self._door is not None:
            await self._door.close()
        self._listener.close()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # whose searches took longer than may be waited for
            if isinstance(connection, Connection):
                connection.abandon()

    def _protocol(self) -> asyncio.Protocol:
        return Connection(
            self.config, self.server_state, self.lifespan.state, shortcut=self._shortcut, ended=self._tell
        )

    def _tell(self) -> None:
        if self._door is not None:
            self._door.tell()


def _already_handled(number: int, frame: FrameType | None) -> None:
    """Let a signal pass."""
