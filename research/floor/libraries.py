"""A whole search in one process, and the calls of Faiss and of Lucene in it."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, Final, TypeVar

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.json import json_response
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from research.floor.floor import CANDIDATES, Floor

__all__ = ["measure_libraries"]

T = TypeVar("T")
_TURNS: Final = 6
"""Turns over the queries; the first half warms up."""


def measure_libraries(bundle: Bundle, texts: Sequence[str]) -> dict[str, float]:
    """Return medians in milliseconds of wall time over the texts: `search`, from the request to the answer, `dense`,
    the candidates of Faiss, and `sparse`, the call into Lucene that finds candidates and scores those of Faiss."""
    floor, times = Floor(bundle), dict[str, list[float]]()

    def timed(name: str, call: Callable[..., T], *arguments: Any) -> T:
        began = perf_counter()
        result = call(*arguments)
        times.setdefault(name, []).append(perf_counter() - began)
        return result

    with floor.sparse, SearchEngine.open(bundle) as engine:
        find = partial(floor.sparse.find, language=floor.language)
        engine.warm_up()
        for turn in range(_TURNS):
            if turn == _TURNS // 2:
                times.clear()
            for text in texts:
                timed("search", lambda request: json_response(engine.answer(request)), SearchRequest(query=text))
                nearest = timed("dense", floor.dense.nearest, floor.vector(text), CANDIDATES)
                timed("sparse", find, text, CANDIDATES, nearest)
    return {name: round(median(values) * 1e3, 4) for name, values in times.items()}
