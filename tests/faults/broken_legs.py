"""Legs that break where real ones would: in Lucene, in the Java virtual machine, in Faiss."""

import sys
from pathlib import Path
from socket import create_server
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.index import FoundImpacts, ImpactIndex
from lightretriever.artifacts.sparse.jvm import java_call, java_class
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.backends.local import LuceneSparse
from lightretriever.service.collections.collections import Collections, EngineHolder
from lightretriever.service.serving.server import serve
from lightretriever.service.settings import Settings

_MANY: Final = 2**31 - 1  # bytes, more than any Java heap here


class Broken(LuceneSparse):
    """Does `begin` before each search, alone or with the dense leg."""

    def begin(self) -> None:
        """Break in Java."""
        raise NotImplementedError

    def find(self, query: EncodedQuery, count: int, *more: Any, **named: Any) -> FoundImpacts:
        self.begin()
        return super().find(query, count, *more, **named)


class OutOfMemory(Broken):
    """Asks for an array that the Java heap can't hold: java.lang.OutOfMemoryError."""

    def begin(self) -> None:
        java_call(java_class("java.nio.ByteBuffer").allocate, _MANY)


class EndlessRecursion(Broken):
    """Lets Java's regular expressions recurse for every letter of a long text: java.lang.StackOverflowError."""

    def begin(self) -> None:
        java_call(java_class("java.util.regex.Pattern").matches, "(a|b)*", "ab" * 1_000_000)


class Hanging(Broken):
    """Waits in Java, where nothing of Python reaches it, until `release`."""

    def __init__(self, index: ImpactIndex) -> None:
        super().__init__(index)
        self._latch = java_class("java.util.concurrent.CountDownLatch")(1)

    def begin(self) -> None:
        java_call(getattr(self._latch, "await"))

    def release(self) -> None:
        java_call(self._latch.countDown)


def closed_reader(bundle: Bundle) -> LuceneSparse:
    """A leg whose Lucene reader was closed: org.apache.lucene.store.AlreadyClosedException."""
    index = bundle.sparse()
    index.close()
    return LuceneSparse(index)


def main(bundle: Path) -> None:
    """Serve a bundle whose sparse leg hangs from the first request on, and print the port."""
    settings = Settings(deadline_ms=4_000, search_threads=2, warm_up_queries=1, log_level="error")
    with create_server(("127.0.0.1", 0)) as listener, EngineHolder.open(bundle, settings) as serving:
        engine = serving.engine

        def on_ready() -> None:
            engine.parts.backends.legs["sparse"] = Hanging(engine.bundle.sparse())
            print(listener.getsockname()[1], flush=True)

        serve(Collections({serving.name: serving}), [listener], on_ready)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
