"""Connections on which a test writes what it likes, and certificates that openssl makes."""

import socket
import subprocess
from pathlib import Path

POST = b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
"""The head of a search, without a length and without its end."""


def dial(service: str | int) -> socket.socket:
    """Connect to a service, by its address or its port."""
    port = service if isinstance(service, int) else int(service.rpartition(":")[2])
    return socket.create_connection(("127.0.0.1", port), 60)


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def self_signed(certificate: Path, key: Path) -> None:
    """Write a certificate of 127.0.0.1 and localhost, and its key."""
    about = ("-days", "2", "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", *about, "-keyout", key, "-out", certificate)
