"""Serves bundles on sockets, all addresses of a host or a Unix socket: uvicorn in this process, or in several workers
of its supervisor."""

import ctypes
import errno
import logging
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import uvicorn

from lightretriever.artifacts.bundle.manifest import read_manifest
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.collections.collections import Collections, Folders, freeze_gc
from lightretriever.service.errors import SettingsError
from lightretriever.service.http.app import Application, create_app
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.serving.config import Certificates, check_tls, server_config
from lightretriever.service.serving.connection import Connection
from lightretriever.service.serving.workers import announce, automatic_workers, run_workers
from lightretriever.service.settings import Settings

EXIT_ERROR: Final = 2
BACKLOG: Final = 2048
_MAX_SOCKETS: Final = 128
_UNIX: Final = "unix:"
_WRITE_TIMEOUT_MS: Final = 10_000
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_MIN_FILES: Final = 256
_ARENA_MAX: Final = -8  # M_ARENA_MAX of glibc's malloc.h
_SWITCH_S: Final = 0.001  # a fifth of Python's default

_log = logging.getLogger(__name__)


def run(
    bundles: Mapping[str, Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    settings: Settings | None = None,
    workers: int | None = None,
) -> int:
    """Serve the bundles in folders, by the names of their collections, until SIGTERM or SIGINT. Return the exit code.

    0 after a graceful stop; 2, with one line on stderr, if the address or the file of API keys can't be used or the
    bundle is bad. Port 0 takes a free one. Prints the address on stdout when the service is ready. `workers` is the
    number of processes; None: as many as `automatic_workers` says.
    """
    _one_arena()
    chosen = settings or Settings()
    configure_logging(chosen.log_level)
    try:
        with ExitStack() as stack:
            _check_files()
            check_tls(chosen)
            if chosen.live is not None and chosen.api_keys_file is None:
                _log.warning("no document can be written without API keys: name their file, api_keys_file")
            listeners = _listen(stack, host, port, chosen)
            address = address_of("http" if chosen.tls_certificate_file is None else "https", host, listeners)
            count = automatic_workers(chosen) if workers is None else workers
            if count > 1:
                line = f"{ready_line(bundles)} in {count} processes at {address}"
                run_workers(bundles, chosen, listeners, count, line)
                return 0
            with Collections.open(bundles, chosen) as collections:
                serve(collections, listeners, partial(announce, f"{ready_line(bundles)} at {address}"))
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0


def ready_line(bundles: Folders) -> str:
    """Describe the bundles that are served, with the names of several collections."""
    manifests = {name: read_manifest(folder) for name, folder in bundles.items()}
    several = len(manifests) > 1
    names = ", ".join(
        f"{name} ({manifest.name!r})" if several else repr(manifest.name) for name, manifest in manifests.items()
    )
    return f"Ready: {sum(manifest.documents for manifest in manifests.values())} documents of {names}"


def serve(collections: Collections, listeners: Sequence[socket.socket], on_ready: Callable[[], None]) -> None:
    """Answer requests in this process until SIGTERM or SIGINT, as `create_app` does. Ends the process at once if a call
    into a backend hangs then, since Python would wait for its thread."""
    app = _application(collections, on_ready)
    # uvicorn stops gracefully and then raises the signal again for the previous handler; ignore it.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        make_server(app).run(sockets=list(listeners))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _end(collections)


def make_server(app: Application) -> uvicorn.Server:
    """Make the server of an application, to run once with listening sockets."""
    certificates = Certificates(app.state.settings)
    app.state.watched += certificates.watched()
    return uvicorn.Server(server_config(app, app.state.settings, certificates))


def _one_arena() -> None:
    """Have all threads allocate from one arena of glibc: of several, each keeps what was freed in it, above all what
    Java's compiler used during the warm-up. Call it before there are threads."""
    with suppress(AttributeError):  # another libc
        ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)


def _application(
    collections: Collections, on_ready: Callable[[], None], on_stopped: Callable[[], None] = lambda: None
) -> Application:
    def begin() -> None:
        freeze_gc()
        on_ready()

    sys.setswitchinterval(_SWITCH_S)  # the event loop waits so long for each thread that computes
    return create_app(collections, on_ready=begin, on_stopped=on_stopped)


def open_worker(bundles: Folders, settings: Settings, supervisor: int, on_ready: Callable[[], None]) -> Application:
    """Make the application of a worker; its `supervisor` tells others of a reload. Errors of `Collections.open`."""
    _one_arena()
    configure_logging(settings.log_level)
    early: list[int] = []  # requests that come while the bundles open; without a handler they would end the process
    signal.signal(signal.SIGUSR1, lambda number, _: early.append(number))
    stack = ExitStack()
    collections = stack.enter_context(Collections.open(bundles, settings))

    def ask(*_: object) -> None:
        for holder in collections:
            holder.ask()

    signal.signal(signal.SIGUSR1, ask)
    if early:
        ask()
    for holder in collections:
        holder.on_reload = partial(os.kill, supervisor, signal.SIGUSR1)
    stack.callback(_end, collections)
    return _application(collections, on_ready, stack.close)


def _end(collections: Collections) -> None:
    Connection.log_malformed()
    _log.info("stopped")
    if any(holder.engine.parts.executor.abandoned for holder in collections):
        sys.stdout.flush()
        os._exit(0)  # Python would wait for the threads of abandoned calls


def _listen(stack: ExitStack, host: str, port: int, settings: Settings) -> list[socket.socket]:
    try:
        return stack.enter_context(listening(host, port))
    except OSError as error:
        where = host if host.startswith("unix:") else f"{host} port {port}"
        taken = error.errno == errno.EADDRINUSE and where != host
        remedy = "Stop what listens there, or name another port: --port 0 takes a free one." if taken else ""
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or errno.EINVAL)
        raise SettingsError(f"can't listen on {where}: {reason}.", remedy=remedy) from error
    except ValueError as error:  # includes UnicodeError: labels too long, or with a null
        raise SettingsError(f"can't listen on {host!r}: not the name of a host: {error}.") from error


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Listen on every address of a host, such as 127.0.0.1 and ::1 of localhost, all on one port; port 0 takes a free
    one. A host `unix:PATH` is a Unix socket, which is removed afterwards. OSError, and ValueError for what is no name.

    libuv accepts one connection by each socket in a turn of the event loop, and under load a turn is long. So each
    socket is there several times: 128 together, or a sixteenth of the files that the process may open. The kernel
    closes a connection whose client reads nothing for 10 s (Linux only), not to hold the rest of the answer.
    """
    path = host.removeprefix(_UNIX) if host.startswith(_UNIX) else None
    if path is None:
        listeners = _internet(host, port)
    else:
        if _is_left_over(path):
            Path(path).unlink()
        listeners = [socket.create_server(path, family=socket.AF_UNIX, backlog=BACKLOG)]
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    for listener in listeners:
        if option is not None and listener.family != socket.AF_UNIX:
            listener.setsockopt(socket.IPPROTO_TCP, option, _WRITE_TIMEOUT_MS)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    sockets = min(_MAX_SOCKETS, files // 16) if files > 0 else _MAX_SOCKETS
    listeners += [listener.dup() for listener in listeners for _ in range(sockets // len(listeners) - 1)]
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()
        if path is not None:
            with suppress(OSError):
                Path(path).unlink()


def address_of(scheme: str, host: str, listeners: Sequence[socket.socket]) -> str:
    """Return the address to print."""
    if listeners[0].family == socket.AF_UNIX:
        return f"{_UNIX}{listeners[0].getsockname()}"
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}:{listeners[0].getsockname()[1]}"


def _internet(host: str, port: int) -> list[socket.socket]:
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in infos))
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    for family, address in addresses:
        chosen = listeners[0].getsockname()[1] if listeners else port
        both = family == socket.AF_INET6 and len(addresses) == 1 and address[0] == "::" and socket.has_dualstack_ipv6()
        try:
            endpoint = (address[0], chosen, *address[2:])
            listeners.append(socket.create_server(endpoint, family=family, backlog=BACKLOG, dualstack_ipv6=both))
        except OSError as error:
            if error.errno not in _NO_SUCH_ADDRESS:
                for listener in listeners:
                    listener.close()
                raise
            missing = error
    if not listeners and missing is not None:
        raise missing
    return listeners


def _is_left_over(path: str) -> bool:
    """True if a killed process left a socket at a path, at which nobody listens."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            return False
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return True
    return False


def _check_files() -> None:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if 0 <= files < _MIN_FILES:
        raise SettingsError(
            f"this process may have {files} files and connections open, too few.",
            remedy=f"Allow {_MIN_FILES} or more: ulimit -n {4 * _MIN_FILES}.",
        )
