"""Searches with words of the documents until the JVM is fast, before an engine calls itself ready."""

from collections.abc import Callable
from dataclasses import replace
from threading import Event
from time import perf_counter
from typing import Final

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.parts import Parts
from lightretriever.service.search.pipeline import Search
from lightretriever.service.search.request import Plan
from lightretriever.service.settings import Settings

__all__ = ["warm_up"]

_DEADLINE_MS: Final = 5_000.0
_PROBES: Final = 500  # different searches


def warm_up(
    parts: Parts,
    settings: Settings,
    plan: Callable[[SearchRequest], Plan],
    manifest: Manifest,
    stop: Event,
    share: float,
) -> bool:
    """Search for up to `warm_up_queries` searches or `warm_up_s` seconds, and for no more than a `share` of the time.

    `plan` fills in a request's defaults. Beginnings of documents that can't be encoded are left out; where none is
    left, the bundle's name is searched for, and nothing if that can't be encoded either. The reranking model is not
    asked, as searches can do without it. Gives False as soon as `stop` is set. SearchFailedError or DeadlineError if a
    leg did not answer one of the searches.
    """
    probes = _encodable(parts, manifest, parts.documents.probes(_PROBES)) or _encodable(
        parts, manifest, [manifest.name]
    )
    until = perf_counter() + settings.warm_up_s
    for number in range(settings.warm_up_queries if probes else 0):
        begun = perf_counter()
        if stop.is_set() or (number and begun >= until):
            break
        request = SearchRequest(query=probes[number % len(probes)], allow_partial=False, k=1, rerank=False)
        Search(parts, replace(plan(request), deadline_ms=_DEADLINE_MS), StageClock()).run()
        if share < 1.0:
            stop.wait((perf_counter() - begun) * (1.0 / share - 1.0))
    return not stop.is_set()


def _encodable(parts: Parts, manifest: Manifest, texts: list[str]) -> list[str]:
    return [text for text in texts if parts.encoder.can_encode(text, manifest.default_task)]
