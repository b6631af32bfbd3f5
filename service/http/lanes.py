"""The two lanes of a process: light searches are answered in the event loop, everything else in a pool of threads.

A hand-over to a thread and back costs more than a light search gains by it, as Python runs one thread at a time. But a
call in the event loop can't be abandoned: while something of a collection is slow or hangs, all go to the threads.
"""

from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Final, TypeVar

from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.filters import count_values
from lightretriever.service.search.request import candidates_of

LIGHT_S: Final = 0.005
"""Light searches are answered in the event loop as long as they take less than so many seconds of a processor."""

STALL_S: Final = 0.5
"""After a search that took so many seconds by the clock, the next goes to a thread: it may have waited for a disk."""

MAX_LIGHT_BYTES: Final = 4096
"""Largest body of a light search."""

_MAX_CHARACTERS: Final = 500
_MAX_HITS: Final = 100
_MAX_VALUES: Final = 50  # of a filter
_LEG_FIELDS: Final = {"query", "mode", "task", "fusion", "candidates", "filter"}
_PAGE_FIELDS: Final = {"k", "offset", "fields", "deadline_ms", "allow_partial"}
_HEAVY_FIELDS: Final = tuple(SearchRequest.model_fields.keys() - _LEG_FIELDS - _PAGE_FIELDS)
_SHARE: Final = 1 / 16
T = TypeVar("T")


def is_light(request: SearchRequest, engine: SearchEngine) -> bool:
    """True if a search is plain, filtered or fused, of few hits and words, and the engine neither waits for a cluster
    or a reranking model nor replays what others write, and has no call that hangs."""
    parts, settings = engine.parts, engine.settings
    return (
        request.query is not None
        and len(request.query) <= _MAX_CHARACTERS
        and not any(getattr(request, name) for name in _HEAVY_FIELDS)
        and request.offset + request.k <= _MAX_HITS
        and candidates_of(request, settings) <= max(settings.candidates, _MAX_HITS)
        and (request.filter is None or count_values(request.filter) <= _MAX_VALUES)
        and parts.backends.cluster is None
        and parts.backends.live is None
        and not parts.executor.abandoned
        and (parts.reranker is None or request.rerank is False)
    )


class Recent:
    """The processor time of a collection's light searches: a moving average over some 16, in seconds."""

    def __init__(self) -> None:
        self.seconds = float("inf")
        """Infinite before the first one, and after one that took `STALL_S`."""

    def measure(self, answer: Callable[[], T], clock: StageClock) -> T:
        """Answer a search and count its processor time, with that of the calls that it handed to other threads. Short
        waits for Python's lock or for a processor are no property of a search."""
        started, began = perf_counter(), thread_time()
        try:
            return answer()
        finally:
            took = thread_time() - began + clock.handed_s
            mean = self.seconds if self.seconds < float("inf") else took
            stalled = perf_counter() - started >= STALL_S
            self.seconds = float("inf") if stalled else mean + _SHARE * (took - mean)
