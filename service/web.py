"""The web server of one process: uvicorn over what is served, until a signal ends it."""

import logging
import signal
from collections.abc import Callable
from socket import socket
from types import FrameType
from typing import Final

import uvicorn

from service.app import create_app
from service.swap import Serving

__all__ = ["BACKLOG", "EXIT_ERROR", "ready_line", "serve"]

BACKLOG: Final = 2048
EXIT_ERROR: Final = 2

_log = logging.getLogger(__name__)


def ready_line(serving: Serving) -> str:
    """Say what is served."""
    manifest = serving.current.engine.bundle.manifest
    return f"Ready: {manifest.documents} documents of {manifest.name!r}"


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
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _log.info("stopped")


def _already_handled(number: int, frame: FrameType | None) -> None:
    """Let a signal pass."""
