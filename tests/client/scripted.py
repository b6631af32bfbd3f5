"""A small real HTTP server that does as it is told, one step per request: it can answer, stall and break off."""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from typing import Any, Self, TypeVar

import pytest

from lightretriever.service.client import ClientError
from tests.client.both import Maker

E = TypeVar("E", bound=ClientError)
Step = Callable[[BaseHTTPRequestHandler], None]

HIT = {"id": "a", "rank": 1, "score": 1.0, "dense": {"score": 0.5, "rank": 1}, "sparse": None, "fields": {}}
FOUND: dict[str, Any] = {"hits": [HIT], "degraded": [], "mode": "hybrid", "task": "default", "candidates": 1}
FOUND["timings_ms"] = {"total": 1.0}


def answer(content: object = FOUND, status: int = 200, **headers: str) -> Step:
    """Answer with JSON, or with bytes as they are."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()

    def step(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return step


def problem(status: int, kind: str, *, detail: str = "why", errors: list[Any] | None = None, **headers: str) -> Step:
    """Answer with an error as the service does."""
    about = {"type": "/type", "title": "What", "instance": "/search", "request_id": "r-1", "errors": errors or []}
    return answer({**about, "status": status, "kind": kind, "detail": detail}, status, **headers)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection without a word."""
    handler.connection.shutdown(socket.SHUT_RDWR)


def break_off(handler: BaseHTTPRequestHandler) -> None:
    """Announce more than is sent, and close the connection."""
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"hits": [')
    hang_up(handler)


def stall_until(event: threading.Event) -> Step:
    """Say nothing before the event, then answer."""

    def step(handler: BaseHTTPRequestHandler) -> None:
        event.wait()
        answer()(handler)

    return step


def drip_until(event: threading.Event) -> Step:
    """Send a body without an end, a byte now and then."""

    def step(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "1000000")
        handler.end_headers()
        while not event.wait(0.02):
            handler.wfile.write(b" ")

    return step


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # connections that come together; beyond, a client would try again for up to a minute


class Scripted:
    """The server. Each request takes the next step; the last one is repeated. `seen` has what came, and when."""

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)
        self._lock = threading.Lock()
        self.seen: list[Mapping[str, Any]] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            body = b""

            def do_POST(self) -> None:
                self.body = self.rfile.read(int(self.headers.get("content-length", 0)))
                step = script._next(self, self.body)
                try:
                    step(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            do_GET = do_PUT = do_DELETE = do_POST  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _next(self, handler: BaseHTTPRequestHandler, body: bytes) -> Step:
        with self._lock:
            place = min(len(self.seen), len(self._steps) - 1)
            headers = {name.lower(): value for name, value in handler.headers.items()}
            came = {"path": handler.path, "body": body, "headers": headers, "at": monotonic()}
            self.seen.append({**came, "client": handler.client_address})
        return self._steps[place]

    def wait_for(self, count: int) -> None:
        """Wait until so many requests have come."""
        until = monotonic() + 60
        while len(self.seen) < count:
            assert monotonic() < until, f"{len(self.seen)} requests came, not {count}"
            sleep(0.01)

    @property
    def connections(self) -> int:
        """How many connections had requests."""
        return len({request["client"] for request in self.seen})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def failure(make: Maker, kind: type[E], *steps: Step, **options: Any) -> tuple[E, int]:
    """Search a server that does these steps in vain; give the error, and how many requests came."""
    with Scripted(*steps) as server, make(server.url, **options) as client:
        with pytest.raises(kind) as error:
            client.search("music")
        return error.value, len(server.seen)
