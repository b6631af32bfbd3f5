"""Connections on which a test writes what it likes."""

import socket

POST = b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
"""The head of a search, without a length and without its end."""


def dial(service: str | int) -> socket.socket:
    """Connect to a service, by its address or its port."""
    port = service if isinstance(service, int) else int(service.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), 60)


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))
