"""A whole search in one process, and its stages: what Faiss and Lucene take of it, and what the service does."""

from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.json import json_response
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine

_TURNS: Final = 12
"""Turns over the queries; the first half warms up."""


def measure_stages(bundle: Bundle, texts: Sequence[str]) -> dict[str, float]:
    """Return medians in milliseconds of wall time over the texts: `search`, from the request to the answer as JSON, and
    of each stage, by its own clock; 0 for one that most searches don't have. `dense` is the call of Faiss for
    candidates, `sparse` that of Lucene, which also scores those of Faiss."""
    times: list[dict[str, float]] = []
    with SearchEngine.open(bundle) as engine:
        engine.warm_up()
        for text in [*texts] * _TURNS:
            began = perf_counter()
            answer = engine.answer(SearchRequest(query=text))
            json_response(answer)
            times.append({"search": (perf_counter() - began) * 1e3} | answer["timings_ms"])
    kept = times[len(times) // 2 :]
    names = dict.fromkeys(name for one in kept for name in one if name != "total")
    return {name: round(median(one.get(name) or 0.0 for one in kept), 4) for name in names}
