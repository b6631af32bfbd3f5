"""The service in a process that searches without HTTP, too, when it is told to.

What a search costs differs between two processes by more than HTTP costs: it depends on where in memory their indexes
happen to lie. Within one process the two can be compared.
"""

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from time import clock_gettime, process_time
from types import TracebackType
from typing import Final, Self

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.wire import LoadError
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine

__all__ = ["Both"]

_spawn: Final = multiprocessing.get_context("spawn")
_STOP_S: Final = 30
_K: Final = 10


class Both:
    """Use it as a context. Raises LoadError when the process ends before it is ready."""

    def __init__(self, bundle: Path) -> None:
        self._pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=_serve, args=(bundle, theirs))
        self._process.start()
        theirs.close()
        try:
            self.url: str = self._pipe.recv()
        except EOFError as error:
            self.close()
            raise LoadError(f"The service ended with {self._process.exitcode} before it was ready.") from error

    def cpu_s(self) -> float:
        """Processor time that the process has used so far, all threads."""
        return clock_gettime((~(self._process.pid or 0) << 3) | 2)  # clock_getcpuclockid(3), which Python lacks

    def search(self, queries: Sequence[str]) -> float:
        """Search for these without HTTP; gives the processor time of that in seconds."""
        self._pipe.send(list(queries))
        used: float = self._pipe.recv()
        return used

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.terminate()
        self._process.join(_STOP_S)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _serve(bundle: Path, pipe: Connection) -> None:
    """Serve until SIGTERM, with a log as the service has it, in a file that nobody reads."""
    from lightretriever.loadtest.servers import thin  # its web server is not needed by who only starts this

    with TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
    configure_logging("info")
    with SearchEngine.open(Bundle.open(bundle)) as engine:
        Thread(target=_search_when_told, args=(engine, pipe), daemon=True).start()
        thin.serve_engine(engine, "both", host="127.0.0.1", port=0, announce=pipe.send)


def _search_when_told(engine: SearchEngine, pipe: Connection) -> None:
    while True:
        try:
            queries = pipe.recv()
        except (EOFError, OSError):  # nobody will tell anything more
            return
        before = process_time()
        for query in queries:
            engine.search(SearchRequest(query=query, k=_K))
        pipe.send(process_time() - before)
