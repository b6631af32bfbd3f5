"""The web server of one process: uvicorn, until a signal ends it."""

import asyncio
import ipaddress
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn

from lightretriever.artifacts.errors import OutputError
from lightretriever.artifacts.files.reading import read_bounded
from lightretriever.service.collections.collections import Collections
from lightretriever.service.errors import SettingsError
from lightretriever.service.execution.memory import freeze_gc
from lightretriever.service.execution.watching import WatchedFile
from lightretriever.service.http.app import Application, create_app
from lightretriever.service.serving.connection import Connections, connection_class
from lightretriever.service.serving.listening import BACKLOG
from lightretriever.service.settings import Settings

__all__ = [
    "EXIT_ERROR",
    "announce",
    "check_tls",
    "make_server",
    "ready_line",
    "serve",
]

EXIT_ERROR: Final = 2
_HANDSHAKE_STEPS: Final = 4
_OF_DATES: Final = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
_REFRESH_S: Final = 1
_MOST_PEM_BYTES: Final = 1 << 20
_MOST_CONNECTIONS: Final = 10_000
_LAST_CALL_S: Final = 0.25
_LAST_READS: Final = 3
_SWITCH_S: Final = 0.001  # a fifth of Python's default
_ACCEPT_AGAIN_S: Final = 1.0
_YIELD_S: Final = 0.001  # for each open connection, a shared listener is left to the other processes
_MOST_YIELD_S: Final = 0.008

_log = logging.getLogger(__name__)


def ready_line(collections: Collections) -> str:
    """Describe the served bundles."""
    manifests = [holder.engine.bundle.manifest for holder in collections]
    names = ", ".join(repr(manifest.name) for manifest in manifests)
    return f"Ready: {sum(manifest.documents for manifest in manifests)} documents of {names}"


def announce(line: str) -> None:
    """Print a line on stdout; ignore a full disk or a closed pipe."""
    with suppress(OSError, OutputError):
        print(line, flush=True)


def serve(
    collections: Collections, listeners: Sequence[socket.socket], on_ready: Callable[[], None], *, shared: bool = False
) -> None:
    """Answer requests until SIGTERM or SIGINT. `on_ready` is called after the warm-up; `shared` tells whether other
    processes have the same listeners. Errors as in `create_app`.

    SIGHUP has the folders of bundles looked into; from a terminal that closes, it ends the process as any other.
    Ends the process at once if a call into a backend hangs then, since Python would wait for its thread.
    """

    def begin() -> None:
        freeze_gc()
        on_ready()

    collections.each(on_closed=freeze_gc)
    app = create_app(collections, on_ready=begin)
    server = make_server(app, listeners, shared=shared)
    handled: dict[int, Callable[..., object] | int] = {signal.SIGTERM: signal.SIG_IGN, signal.SIGINT: signal.SIG_IGN}
    if not os.isatty(0) and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handled[signal.SIGHUP] = lambda *_: [holder.ask() for holder in collections]
    sys.setswitchinterval(_SWITCH_S)  # the event loop waits so long for each thread that computes
    # uvicorn stops gracefully and then raises the signal again for the previous handler; ignore it.
    before = {number: signal.signal(number, handler) for number, handler in handled.items()}
    try:
        server.run(sockets=list(listeners))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    _log.info("stopped")
    if any(holder.engine.parts.executor.abandoned for holder in collections):
        sys.stdout.flush()
        os._exit(0)


def _certificates(settings: Settings, config: uvicorn.Config) -> WatchedFile[None]:
    """Return the files of the certificate, which have new connections use it when they change."""
    files = [file for file in (settings.tls_certificate_file, settings.tls_key_file) if file is not None]

    def read() -> bytes:
        try:
            return b"\n".join(read_bounded(file, _MOST_PEM_BYTES) for file in files)
        except OSError as error:
            raise SettingsError(f"{error.filename} can't be read: {error.strerror}.") from error

    def use(content: bytes) -> None:
        check_tls(settings)
        if not config.loaded:
            config.load()
        password = settings.tls_key_password or ""
        if config.ssl is not None:
            config.ssl.load_cert_chain(files[0], settings.tls_key_file, lambda: password)

    return WatchedFile("certificates", read, use)


class _Server(uvicorn.Server):
    """Takes many new connections in one turn of the event loop; uvloop takes one, so that under load, when a turn
    refuses hundreds of requests, others would wait for minutes. Of processes that share their listeners, the one with
    the fewest connections takes the next.

    Stops in two steps, so that no request that was sent before the signal is lost: first it takes what comes, and
    closes each connection with its next answer; then it closes those that are idle."""

    def __init__(self, config: uvicorn.Config, connections: Connections, *, shared: bool) -> None:
        super().__init__(config)
        self._connections, self._shared = connections, shared
        self._protocol = connection_class(connections)
        self._opening: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, and listen."""
        await super().startup([])
        for listener in sockets or []:
            listener.setblocking(False)
            self._listen(listener)

    def _listen(self, listener: socket.socket, most: int = 0) -> None:
        """Be told of new connections; take up to `most` first."""
        if listener.fileno() >= 0 and not self.should_exit:
            asyncio.get_running_loop().add_reader(listener, self._offered, listener)
            self._accept(listener, most)

    def _offered(self, listener: socket.socket) -> None:
        """Take new connections: up to a quarter of those that are open, which make a turn long. If the listener is
        shared, they come first to the processes that have fewer."""
        loop, present = asyncio.get_running_loop(), len(self._connections) + len(self._opening)
        if not (self._shared and present):
            self._accept(listener, 1 + present // 4)
            return
        loop.remove_reader(listener)
        loop.call_later(min(present * _YIELD_S, _MOST_YIELD_S), self._listen, listener, 1 + present // 4)

    def _accept(self, listener: socket.socket, most: int) -> None:
        """Take up to `most` new connections."""
        loop = asyncio.get_running_loop()
        for _ in range(most):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no file or memory is left
                _log.error("no connection is taken for a second", extra={"reason": str(error)})
                loop.remove_reader(listener)
                loop.call_later(_ACCEPT_AGAIN_S, self._listen, listener)
                return
            task = loop.create_task(self._open(connection))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        make = partial(self._protocol, self.config, self.server_state, self.lifespan.state)
        with suppress(OSError):  # of the client's TLS too
            await asyncio.get_running_loop().connect_accepted_socket(make, connection, ssl=self.config.ssl)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        super().handle_exit(sig, frame)
        self._connections.stop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop."""
        self._connections.stop()
        await _last_call()
        for listener in sockets or []:
            asyncio.get_running_loop().remove_reader(listener)
            self._accept(listener, BACKLOG)
            listener.close()  # who comes now is refused, and not left waiting for a process that ends
        await _last_call()  # for the requests of those that were taken last
        await super().shutdown(sockets)
        self._connections.tell()


async def _last_call() -> None:
    """Wait a moment, and read what has come meanwhile: a timer that is due comes before that."""
    await asyncio.sleep(_LAST_CALL_S)
    for _ in range(_LAST_READS):
        await asyncio.sleep(0)


def make_server(app: Application, listeners: Sequence[socket.socket], *, shared: bool = False) -> uvicorn.Server:
    """Make the server of an application, to run once with listening sockets, which other processes may have, too."""
    settings = app.state.settings
    _bound_writes(listeners, settings)
    connections = Connections(_most_connections())

    async def refresh() -> None:
        app.state.collections.metrics.refresh()
        connections.tell()

    config = uvicorn.Config(
        app,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        forwarded_allow_ips=_also_mapped(settings.trusted_proxies),
        backlog=BACKLOG,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=settings.shutdown_grace_s,
        callback_notify=refresh,  # every second, for the other processes and the log
        timeout_notify=_REFRESH_S,
        ssl_certfile=settings.tls_certificate_file,
        ssl_keyfile=settings.tls_key_file,
        ssl_keyfile_password=settings.tls_key_password,
    )
    if settings.tls_certificate_file is not None:
        app.state.watched.append(_certificates(settings, config))
    return _Server(config, connections, shared=shared)


def _most_connections() -> int:
    """Three quarters of the files that the process may have open; the bundle, and a new one beside it, need others."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_CONNECTIONS if files < 0 else min(_MOST_CONNECTIONS, files * 3 // 4)


def check_tls(settings: Settings) -> None:
    """Raise SettingsError unless certificate and private key can be used, if there are any. One that is not valid today
    is warned of in the log."""
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    if certificate is None:
        if key is not None:
            raise SettingsError(
                "Setting 'tls_key_file' is set, but 'tls_certificate_file' is not.", remedy="Set both, or neither."
            )
        return
    for name, file in (("tls_certificate_file", certificate), ("tls_key_file", key)):
        if file is not None and not os.access(file, os.R_OK):
            raise SettingsError(f"Setting {name!r}: {file} can't be read.", remedy="Name a PEM file.")
    password = settings.tls_key_password or ""  # without one, OpenSSL would ask at the terminal
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsError(
            f"Settings 'tls_certificate_file' and 'tls_key_file': {certificate} and {key or certificate} can't be "
            f"used: {error}.",
            remedy="Name PEM files of a certificate and its private key, and set tls_key_password if the key has one.",
        ) from error
    if (reason := _why_not_valid(certificate, key, password)) is not None:
        _log.warning("clients will refuse the certificate", extra={"file": str(certificate), "reason": reason})


def _why_not_valid(certificate: Path, key: Path | None, password: str) -> str | None:
    """Why a certificate is not valid today; None if it is. OpenSSL says so to a client that trusts it, in memory."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(certificate, key, lambda: password)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(certificate)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    try:
        for _ in range(_HANDSHAKE_STEPS):
            for end in ends:
                with suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        return error.verify_message if error.verify_code in _OF_DATES else None
    except ssl.SSLError:  # another reason, such as a key that is too short, is the operator's choice
        return None
    return None


def _also_mapped(proxies: str) -> str:
    """The trusted networks, those of IPv4 also as a socket of IPv6 has them: 10.0.0.0/8 is ::ffff:10.0.0.0/104, too."""
    networks = [ipaddress.ip_network(name.strip()) for name in proxies.split(",") if name.strip() not in ("", "*")]
    mapped = (f"::ffff:{net.network_address}/{96 + net.prefixlen}" for net in networks if net.version == 4)
    return ",".join([proxies.strip(), *mapped])


def _bound_writes(listeners: Sequence[socket.socket], settings: Settings) -> None:
    """Make the kernel close a connection whose client reads nothing for `write_timeout_s` (Linux only).

    Otherwise the server would buffer the rest of the answer and wait for the client.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    for listener in listeners:
        if option is not None and listener.family != socket.AF_UNIX:
            listener.setsockopt(socket.IPPROTO_TCP, option, round(settings.write_timeout_s * 1e3))
