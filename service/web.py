"""The web server of one process: uvicorn over what is served, until a signal ends it."""

import logging
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from socket import socket
from types import FrameType
from typing import Final

import uvicorn

from service.app import create_app
from service.swap import Serving

__all__ = ["BACKLOG", "EXIT_ERROR", "announce", "ready_line", "serve"]

BACKLOG: Final = 2048
# uvloop takes one connection of a socket in each turn of its event loop. Under load a turn is long, and hundreds of new
# connections would wait for seconds before their deadlines even begin. So it gets the socket many times.
_DOORS: Final = 64
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


def serve(serving: Serving, listener: socket, on_ready: Callable[[], None]) -> None:
    """Answer requests until SIGTERM or SIGINT. `on_ready` is called after the warm-up. Errors as in `create_app`."""
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
        with ExitStack() as stack:
            doors = [listener, *(stack.enter_context(listener.dup()) for _ in range(_DOORS - 1))]
            uvicorn.Server(config).run(sockets=doors)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _log.info("stopped")


def _already_handled(number: int, frame: FrameType | None) -> None:
    """Let a signal pass."""
