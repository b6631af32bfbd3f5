"""The command `serve`: listens on an address and runs one process or several workers."""

import logging
import resource
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.collections.collections import Collections
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.serving.listening import OPEN, UNIX, address_of, listening
from lightretriever.service.serving.server import EXIT_ERROR, announce, check_tls, ready_line, serve
from lightretriever.service.serving.workers import automatic_workers, run_workers
from lightretriever.service.settings import Settings

__all__ = ["EXIT_ERROR", "run"]

_log = logging.getLogger(__name__)
_FEWEST_FILES: Final = 256


def run(
    bundles: Mapping[str, Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    settings: Settings | None = None,
    workers: int | None = None,
) -> int:
    """Serve the bundles in folders, by the names of their collections, until SIGTERM or SIGINT, and give the exit code.

    0 after a graceful stop; 2, with one line on stderr, if the address or the file of API keys can't be used or the
    bundle is bad. Port 0 takes a free one. Prints the address on stdout when the service is ready. `workers` is the
    number of processes; None: as many as `automatic_workers` says, which the log tells.
    """
    chosen = settings or Settings()
    configure_logging(chosen.log_level)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= files < _FEWEST_FILES:
        remedy = f"Allow {_FEWEST_FILES} or more: ulimit -n {4 * _FEWEST_FILES}."
        print(f"error: this process may have {files} files and connections open, too few. {remedy}", file=sys.stderr)
        return EXIT_ERROR
    with ExitStack() as stack:
        try:
            check_tls(chosen)
            listeners = stack.enter_context(listening(host, port))
        except LightRetrieverError as error:
            print(f"error: {error}", file=sys.stderr)
            return EXIT_ERROR
        except OSError as error:
            where = host if host.startswith((UNIX, OPEN)) else f"{host} port {port}"
            print(f"error: can't listen on {where}: {error.strerror or error}.", file=sys.stderr)
            return EXIT_ERROR
        except ValueError as error:  # includes UnicodeError: labels too long, or with a null
            print(f"error: can't listen on {host!r}: not the name of a host: {error}.", file=sys.stderr)
            return EXIT_ERROR
        return _serve(bundles, chosen, listeners, host, workers)


def _serve(
    bundles: Mapping[str, Path],
    chosen: Settings,
    listeners: Sequence[socket.socket],
    host: str,
    workers: int | None,
) -> int:
    if workers is None:
        workers, reason = automatic_workers(chosen)
        if reason is not None:
            _log.info("fewer processes than processors", extra={"processes": workers, "reason": reason})
    address = address_of("http" if chosen.tls_certificate_file is None else "https", host, listeners)
    try:
        if workers > 1:
            run_workers(bundles, chosen.among(workers), listeners, workers, address)
        else:
            with Collections.open(bundles, chosen) as collections:
                ready = partial(ready_line, collections)
                serve(collections, listeners, on_ready=lambda: announce(f"{ready()} at {address}"))
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0
