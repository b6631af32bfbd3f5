"""The sockets that the service listens on: all addresses of a host, or a Unix socket."""

import errno
import resource
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

BACKLOG: Final = 2048
_MAX_SOCKETS: Final = 128
_UNIX: Final = "unix:"
_WRITE_TIMEOUT_MS: Final = 10_000
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


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
