"""Searches with words of the documents until the JVM is fast, before an engine calls itself ready."""

from collections.abc import Callable
from dataclasses import replace
from threading import Event
from time import perf_counter
from typing import Final

from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import Mode, SearchRequest
from lightretriever.service.search.pipeline import Search
from lightretriever.service.search.plan import Parts, Plan
from lightretriever.service.settings import Settings

__all__ = ["warm_up"]

_DEADLINE_MS: Final = 5_000.0
_BM25_EVERY: Final = 10
_PROBES: Final = 500  # different searches


def warm_up(
    parts: Parts, settings: Settings, plan: Callable[[SearchRequest], Plan], title: str, stop: Event, share: float
) -> bool:
    """Search for up to `warm_up_queries` searches or `warm_up_s` seconds, and for no more than a `share` of the time.

    `plan` fills in a request's defaults; `title` is searched for where no document has words. Gives False as soon as
    `stop` is set. SearchFailedError or DeadlineError if a leg did not answer one of the searches.
    """
    probes = parts.documents.probes(_PROBES) or [title]
    until = perf_counter() + settings.warm_up_s
    for number in range(settings.warm_up_queries):
        begun = perf_counter()
        if stop.is_set() or (number and begun >= until):
            break
        mode: Mode = "bm25" if number % _BM25_EVERY == 1 and "bm25" in parts.legs else "hybrid"
        request = SearchRequest(query=probes[number % len(probes)], mode=mode, allow_partial=False, k=1)
        Search(parts, replace(plan(request), deadline_ms=_DEADLINE_MS), StageClock()).run()
        if share < 1.0:
            stop.wait((perf_counter() - begun) * (1.0 / share - 1.0))
    return not stop.is_set()
