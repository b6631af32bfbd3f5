"""A real server over an application of this very process, so that a test can break parts of its engine."""

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.collections.collections import Collections
from lightretriever.service.http.app import Application, create_app
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.serving.server import make_server
from lightretriever.service.settings import Settings


@contextmanager
def warm(bundle: Bundle, settings: Settings) -> Iterator[SearchEngine]:
    """Yield an engine that has warmed up."""
    with SearchEngine.open(bundle, settings) as engine:
        engine.warm_up()
        yield engine


@contextmanager
def client_of(bundle: Bundle, settings: Settings) -> Iterator[TestClient]:
    """Yield the application over a bundle, in process."""
    with SearchEngine.open(bundle, settings) as engine, TestClient(create_app(engine)) as client:
        yield client


@contextmanager
def client_of_folder(folder: Path, settings: Settings, **calls: Any) -> Iterator[TestClient]:
    """Yield the application over the bundle in a folder, in process."""
    with Collections.open({"default": folder}, settings) as opened, TestClient(create_app(opened, **calls)) as client:
        yield client


@contextmanager
def live(app: Application) -> Iterator[str]:
    """Yield the address of the application, served as `lightretriever serve` does."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        host, port = listener.getsockname()
        server = make_server(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def live_bundles(bundles: Path | Mapping[str, Path], **settings: Any) -> Iterator[str]:
    """Yield the address of bundles that are served by this process, warm. `serving` starts another, which takes
    seconds."""
    chosen = Settings(**{"deadline_ms": 60_000, "warm_up_queries": 3, "watch_s": 0, **settings})
    folders = {"default": bundles} if isinstance(bundles, Path) else bundles
    with Collections.open(folders, chosen) as collections:
        for holder in collections:
            holder.engine.warm_up()
        with live(create_app(collections)) as url:
            yield url
