"""A real server over an application of this very process, so that a test can break parts of its engine."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from lightretriever.service.http.app import Application
from lightretriever.service.serving.server import make_server


@dataclass
class Live:
    """A server under test."""

    server: uvicorn.Server
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def stop(self) -> None:
        """Begin to stop, gracefully."""
        self.server.should_exit = True


@contextmanager
def running(app: Application) -> Iterator[Live]:
    """Serve the application as `lightretriever serve` does."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        host, port = listener.getsockname()
        server = make_server(app, [listener])
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        live = Live(server, host, port)
        try:
            yield live
        finally:
            live.stop()
            thread.join()


@contextmanager
def live(app: Application) -> Iterator[str]:
    """Give the address of the application, served as `lightretriever serve` does."""
    with running(app) as server:
        yield server.url
