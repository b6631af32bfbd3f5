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
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.app import create_app
from service.door import Door, Share
from service.swap import Serving

__all__ = ["BACKLOG", "EXIT_ERROR", "announce", "ready_line", "serve"]

BACKLOG: Final = 2048
EXIT_ERROR: Final = 2

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
    config = uvicorn.Config(
        create_app(serving, on_ready=on_ready),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=serving.settings.trusted_proxies,
        backlog=BACKLOG,
        timeout_graceful_shutdown=serving.settings.shutdown_grace_s,
    )
    # uvicorn stops gracefully and then sends itself the signal again, for whoever handled it before: nobody.
    before = {number: signal.signal(number, _already_handled) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        # First, because duplicates share this flag, also those of other processes, and `dup` sets it as it is here: a
        # worker would hang in accept() when another one was faster.
        listener.setblocking(False)
        _Server(config, listener, share).run(sockets=[])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _log.info("stopped")


class _Connection(HttpToolsProtocol):
    """A connection whose end the door hears of."""

    door: Door | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.door is not None:
            self.door.tell()


class _Server(uvicorn.Server):
    """uvicorn's server behind a door of our own.

    uvloop takes one connection of a socket in each turn of its event loop: under load hundreds of new ones would wait
    for seconds before their deadlines even begin. And it leaves it to chance which process takes how many.
    """

    def __init__(self, config: uvicorn.Config, listener: socket, share: Share | None) -> None:
        super().__init__(config)
        self._listener = listener
        self._share = share
        self._door: Door | None = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self._door = Door(self._listener, self._protocol, lambda: len(self.server_state.connections), self._share)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        if self._door is not None:
            await self._door.close()
        self._listener.close()
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        connection = _Connection(self.config, self.server_state, self.lifespan.state)
        connection.door = self._door
        return connection


def _already_handled(number: int, frame: FrameType | None) -> None:
    """Let a signal pass."""
