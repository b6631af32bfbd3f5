"""A real HTTP server that behaves as badly as a test asks for."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from socketserver import StreamRequestHandler, ThreadingTCPServer
from time import perf_counter

from tests.support.threads import in_a_thread

__all__ = ["Asked", "answer", "serving"]

BODY = b'{"hits":[],"degraded":[]}'


@dataclass
class Asked:
    """What the server saw: arrival times (`perf_counter`), bodies (paths of GET), how many connections were opened."""

    url: str
    times: list[float] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0


Behaviour = Callable[[int], bytes | None]
"""Number of the request to the bytes of its answer; None cuts the connection. Where it sleeps, the server does."""


def answer(status: int = 200, body: bytes = BODY, *, close: bool = False) -> bytes:
    extra = "Connection: close\r\n" if close else ""
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


@contextmanager
def serving(behave: Behaviour = lambda number: answer()) -> Iterator[Asked]:
    """Serve until the block ends; the client must have closed its connections by then."""
    asked, turn = Asked(""), threading.Lock()

    class Handler(StreamRequestHandler):
        disable_nagle_algorithm = True

        def handle(self) -> None:
            with turn:
                asked.connections += 1
            while first := self.rfile.readline():
                headers = list(iter(self.rfile.readline, b"\r\n"))
                sizes = [int(line.split(b":")[1]) for line in headers if line.lower().startswith(b"content-length")]
                body = self.rfile.read(sizes[0]) if sizes else first.split()[1]
                with turn:
                    asked.times.append(perf_counter())
                    asked.bodies.append(body)
                    reply = behave(len(asked.times) - 1)
                if reply is None:
                    return
                try:
                    self.wfile.write(reply)
                except ConnectionError:
                    return
                if b"Connection: close" in reply:
                    return

    ThreadingTCPServer.request_queue_size = 64
    with in_a_thread(ThreadingTCPServer(("127.0.0.1", 0), Handler)) as asked.url:
        yield asked
