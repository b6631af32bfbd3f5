"""A real server over an application of this very process, so that a test can break parts of its engine."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp


@contextmanager
def live(app: ASGIApp) -> Iterator[str]:
    """Give the address of the application, served as `lightretriever serve` does."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        config = uvicorn.Config(
            app, loop="uvloop", http="httptools", ws="none", lifespan="on", log_config=None, access_log=False
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
