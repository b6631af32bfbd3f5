"""Legs that break where real ones would: in Lucene, in the Java virtual machine, in Faiss."""

import sys
from collections.abc import Callable
from pathlib import Path
from socket import create_server
from typing import Any, Final

from lightretriever.artifacts.sparse.jvm import java_call, java_class
from lightretriever.service.collections.collections import Collections, EngineHolder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.serving.server import serve
from lightretriever.service.settings import Settings
from tests.support.legs import WrappedLeg


class Broken(WrappedLeg):
    """Calls Java before each search, alone or with the dense leg: a method of a class, with these arguments."""

    def __init__(self, engine: SearchEngine, name: str = "", method: str = "", *arguments: Any) -> None:
        super().__init__(engine, "sparse")
        self._call = name, method, arguments

    def begin(self, count: int, seconds: float) -> None:
        name, method, arguments = self._call
        java_call(getattr(java_class(name), method), *arguments)


class Hanging(Broken):
    """Waits in Java, where nothing of Python reaches it, until `release`."""

    def __init__(self, engine: SearchEngine) -> None:
        super().__init__(engine)
        self._latch = java_class("java.util.concurrent.CountDownLatch")(1)

    def begin(self, count: int, seconds: float) -> None:
        java_call(getattr(self._latch, "await"))

    def release(self) -> None:
        java_call(self._latch.countDown)


class ClosedReader(WrappedLeg):
    """A leg whose Lucene reader was closed."""

    def __init__(self, engine: SearchEngine) -> None:
        super().__init__(engine, "sparse")
        self.index = engine.bundle.sparse()
        self.index.close()


SPARSE: Final[dict[str, Callable[[SearchEngine], WrappedLeg]]] = {
    "AlreadyClosedException": ClosedReader,
    # More bytes than any Java heap here.
    "OutOfMemoryError": lambda it: Broken(it, "java.nio.ByteBuffer", "allocate", 2**31 - 1),
    # Java's regular expressions recurse for every letter of a long text.
    "StackOverflowError": lambda it: Broken(it, "java.util.regex.Pattern", "matches", "(a|b)*", "ab" * 1_000_000),
}
"""By the exception in Java."""


def main(bundle: Path) -> None:
    """Serve a bundle whose sparse leg hangs from the first request on, and print the port."""
    settings = Settings(deadline_ms=4_000, search_threads=2, warm_up_queries=1, log_level="error")
    with create_server(("127.0.0.1", 0)) as listener, EngineHolder.open(bundle, settings) as serving:
        engine = serving.engine

        def on_ready() -> None:
            Hanging(engine)
            print(listener.getsockname()[1], flush=True)

        serve(Collections({serving.name: serving}), [listener], on_ready)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
