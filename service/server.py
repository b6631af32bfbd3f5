"""The server process: opens a bundle, serves it with uvicorn, stops gracefully."""

import logging
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn

from artifacts.errors import LightRetrieverError
from service.app import create_app
from service.logs import configure_logging
from service.settings import Settings
from service.swap import Serving

__all__ = ["EXIT_ERROR", "run"]

EXIT_ERROR: Final = 2
_BACKLOG: Final = 2048

_log = logging.getLogger(__name__)


def run(bundle: Path, *, host: str = "127.0.0.1", port: int = 8080, settings: Settings | None = None) -> int:
    """Serve the bundle in the folder `bundle` until SIGTERM or SIGINT, and give the exit code.

    0 after a graceful stop; 2, with one line on stderr, where the address or the file of API keys can't be used, or the
    bundle is bad. Port 0 takes a free one. The address is printed on stdout as soon as the service is ready.
    """
    chosen = settings or Settings()
    configure_logging(chosen.log_level)
    try:
        listener = _listen(host, port)
    except OSError as error:
        print(f"error: can't listen on {host} port {port}: {error.strerror or error}.", file=sys.stderr)
        return EXIT_ERROR
    except ValueError as error:  # of which UnicodeError is one: labels too long, or with a null
        print(f"error: can't listen on {host!r}: not the name of a host: {error}.", file=sys.stderr)
        return EXIT_ERROR
    with listener:
        try:
            with Serving.open(bundle, chosen) as serving:
                _serve(serving, listener, host)
        except LightRetrieverError as error:
            print(f"error: {error}", file=sys.stderr)
            return EXIT_ERROR
    return 0


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Only listening tells whether the port is free: two sockets may be bound to it.
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _serve(serving: Serving, listener: socket.socket, host: str) -> None:
    name = f"[{host}]" if ":" in host else host
    url = f"http://{name}:{listener.getsockname()[1]}"

    def announce() -> None:
        manifest = serving.current.engine.bundle.manifest
        print(f"Ready: {manifest.documents} documents of {manifest.name!r} at {url}", flush=True)

    config = uvicorn.Config(
        create_app(serving, on_ready=announce),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=serving.settings.trusted_proxies,
        backlog=_BACKLOG,
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
