"""Legs that break where real ones would: in Lucene, in the Java virtual machine, in Faiss."""

import sys
from collections.abc import Callable
from pathlib import Path
from socket import create_server
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.index import FoundImpacts, ImpactIndex
from lightretriever.artifacts.sparse.jvm import java_call, java_class
from lightretriever.service.backends.local import LuceneSparse
from lightretriever.service.collections.collections import Collections, EngineHolder
from lightretriever.service.serving.server import serve
from lightretriever.service.settings import Settings


class Broken(LuceneSparse):
    """Calls Java before each search, alone or with the dense leg: a method of a class, with these arguments."""

    def __init__(self, index: ImpactIndex, name: str = "", method: str = "", *arguments: Any) -> None:
        super().__init__(index)
        self._call = name, method, arguments

    def begin(self) -> None:
        """Break in Java."""
        name, method, arguments = self._call
        java_call(getattr(java_class(name), method), *arguments)

    def find(self, *arguments: Any) -> FoundImpacts:
        self.begin()
        return super().find(*arguments)


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
    """A leg whose Lucene reader was closed."""
    index = bundle.sparse()
    index.close()
    return LuceneSparse(index)


SPARSE: Final[dict[str, Callable[[Bundle], LuceneSparse]]] = {
    "AlreadyClosedException": closed_reader,
    # More bytes than any Java heap here.
    "OutOfMemoryError": lambda it: Broken(it.sparse(), "java.nio.ByteBuffer", "allocate", 2**31 - 1),
    # Java's regular expressions recurse for every letter of a long text.
    "StackOverflowError": lambda it: Broken(
        it.sparse(), "java.util.regex.Pattern", "matches", "(a|b)*", "ab" * 1_000_000
    ),
}
"""By the exception in Java."""


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
