"""The sockets that the service listens on: all addresses of a host, a Unix socket, or a socket that is open already."""

import errno
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

__all__ = ["BACKLOG", "OPEN", "UNIX", "address_of", "listening"]

UNIX: Final = "unix:"
"""Stands before the path of a Unix socket, in place of a host."""
OPEN: Final = "fd:"
"""Stands before the number of a listening socket that the process was started with, in place of a host."""
BACKLOG: Final = 2048
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Listen on every address of a host, such as 127.0.0.1 and ::1 of localhost, all on one port; port 0 takes a free
    one. A host `unix:PATH` is a Unix socket, which is removed afterwards, and `fd:N` a socket on which whoever started
    the process listens already, such as systemd. OSError, and ValueError for what is no name.
    """
    path = host.removeprefix(UNIX) if host.startswith(UNIX) else None
    if host.startswith(OPEN):
        listeners = [_open(host.removeprefix(OPEN))]
    else:
        listeners = [_unix(path)] if path is not None else _internet(host, port)
    try:
        yield listeners
    finally:
        for listener in listeners:
            listener.close()
        if path is not None:
            with suppress(OSError):
                Path(path).unlink()


def address_of(scheme: str, host: str, listeners: Sequence[socket.socket]) -> str:
    """The address to print."""
    if listeners[0].family == socket.AF_UNIX:
        return f"{UNIX}{listeners[0].getsockname()}"
    if host.startswith(OPEN):
        host = str(listeners[0].getsockname()[0])
    name = f"[{host}]" if ":" in host else host
    return f"{scheme}://{name}:{listeners[0].getsockname()[1]}"


def _open(number: str) -> socket.socket:
    if not (number.isascii() and number.isdigit()):
        raise ValueError("expected the number of an open socket, as in fd:3")
    listener = socket.socket(fileno=int(number))
    if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        listener.close()
        raise OSError(errno.EINVAL, "nobody listens on this socket")
    return listener


def _internet(host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    listeners: list[socket.socket] = []
    missing: OSError | None = None
    try:
        for family, address in addresses:
            chosen = listeners[0].getsockname()[1] if listeners else port
            try:
                listeners.append(_bound(family, (address[0], chosen, *address[2:]), alone=len(addresses) > 1))
            except OSError as error:
                if error.errno not in _NO_SUCH_ADDRESS:
                    raise
                missing = error  # a name may have an address that this machine lacks
        if not listeners and missing is not None:
            raise missing
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bound(family: int, address: tuple[object, ...], *, alone: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if alone and family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        # Two sockets may bind to one port; only listening shows whether it is free.
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_left_over(path):
            Path(path).unlink()
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _is_left_over(path: str) -> bool:
    """Whether a killed process left a socket at a path, at which nobody listens."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        if not stat.S_ISSOCK(Path(path).stat().st_mode):
            return False
        try:
            client.connect(path)
        except ConnectionRefusedError:
            return True
    return False
