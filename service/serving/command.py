"""The command that serves: an address to listen on, and one process or several behind it."""

import os
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.observability.metrics import METRICS_FOLDER
from lightretriever.service.search.reload import EngineHolder
from lightretriever.service.serving.server import BACKLOG, EXIT_ERROR, announce, leave_hanging_calls, ready_line, serve
from lightretriever.service.serving.workers import run_workers
from lightretriever.service.settings import Settings
from prometheus_client.multiprocess import mark_process_dead

__all__ = ["EXIT_ERROR", "run"]

_BEAT_S: Final = 1.0
_KILL_AFTER_S: Final = 10.0  # beyond the time that requests in flight have


def run(
    bundle: Path, *, host: str = "127.0.0.1", port: int = 8080, settings: Settings | None = None, workers: int = 1
) -> int:
    """Serve the bundle in the folder `bundle` until SIGTERM or SIGINT, and give the exit code.

    0 after a graceful stop; 2, with one line on stderr, where the address or the file of API keys can't be used, or the
    bundle is bad. Port 0 takes a free one. The address is printed on stdout as soon as the service is ready. `workers`
    is the number of processes that answer at the address.
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
        address = _address(host, listener)
        if workers > 1:
            return _run_workers(bundle, chosen, listener, workers, address)
        return _run_alone(bundle, chosen, listener, address)


def _run_alone(bundle: Path, settings: Settings, listener: socket.socket, address: str) -> int:
    try:
        with EngineHolder.open(bundle, settings) as holder:
            serve(holder, listener, on_ready=lambda: announce(f"{ready_line(holder)} at {address}"))
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    leave_hanging_calls(holder)
    return 0


def _run_workers(bundle: Path, settings: Settings, listener: socket.socket, count: int, address: str) -> int:
    with tempfile.TemporaryDirectory(prefix="lightretriever-") as metrics:
        os.environ[METRICS_FOLDER] = metrics  # a worker's metrics library reads it when it is imported
        try:
            return run_workers(
                partial(_work, bundle, settings, listener),
                count,
                grace_s=settings.shutdown_grace_s + _KILL_AFTER_S,
                on_ready=lambda line: announce(f"{line} in {count} processes at {address}"),
                on_end=lambda pid: mark_process_dead(pid, metrics),
            )
        finally:
            del os.environ[METRICS_FOLDER]


def _work(bundle: Path, settings: Settings, listener: socket.socket, pipe: Connection) -> None:
    """Serve in a worker process, and tell the supervisor of it through the pipe."""
    configure_logging(settings.log_level)
    told: SimpleQueue[tuple[str, str]] = SimpleQueue()
    holders: list[EngineHolder] = []
    beat = Thread(target=_beat, args=(pipe, told, holders), daemon=True)
    beat.start()
    try:
        with EngineHolder.open(bundle, settings) as holder:
            holders.append(holder)
            holder.on_reload = lambda: told.put(("reload", "asked"))
            serve(holder, listener, on_ready=lambda: told.put(("ready", ready_line(holder))))
    except LightRetrieverError as error:
        told.put(("failed", str(error)))
        beat.join()
        sys.exit(EXIT_ERROR)
    leave_hanging_calls(holder)


def _beat(pipe: Connection, told: "SimpleQueue[tuple[str, str]]", holders: list[EngineHolder]) -> None:
    """Say every second that the process is alive, and what is to be told; reload when another worker was asked to."""
    reload = False
    with suppress(EOFError, OSError):
        while True:
            try:
                said = told.get(timeout=_BEAT_S)
            except Empty:
                said = ("alive", "")
            pipe.send(said)
            if said[0] == "failed":
                return
            while pipe.poll():
                reload = bool(pipe.recv())
            for holder in holders:  # none while the bundle opens
                holder.metrics.refresh()
                if reload:
                    holder.ask()
                    reload = False
    os.kill(os.getpid(), signal.SIGTERM)  # the supervisor is gone, and nobody else would stop this process


def _address(host: str, listener: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Only listening tells whether the port is free: two sockets may be bound to it.
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
