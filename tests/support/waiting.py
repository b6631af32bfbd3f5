"""Ports that nobody listens at, and waiting."""

import socket
from collections.abc import Callable
from time import monotonic, sleep


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds, for 90 seconds at most."""
    until = monotonic() + 90
    while not condition():
        assert monotonic() < until, "it did not happen"
        sleep(0.02)
