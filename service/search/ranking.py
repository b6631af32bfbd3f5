"""The order of the candidates after fusion: boosts, sorting, a reranking model, and groups.

    boosted(d) = fused(d) + sum of what each boost adds

All steps look at all candidates, so pages have one common order.

The reranking model is behind a URL, and asked in the form of text-embeddings-inference's `POST /rerank`, or in that of
Cohere, Jina and vLLM, whose requests name the model. It reads query and documents together, so it is a model in the
query path, and off unless the settings have its URL.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Condition
from time import perf_counter, time
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import numpy as np
import numpy.typing as npt
import orjson

from lightretriever.artifacts.documents.fields import FieldKind, milliseconds, number
from lightretriever.artifacts.dtypes import Float64Array
from lightretriever.artifacts.tokens.tokenizer import text_of
from lightretriever.service.schemas import Boost, Plain, SearchRequest, Sort
from lightretriever.service.search.filters import values_of
from lightretriever.service.search.fusion import Fused
from lightretriever.service.settings import Settings

RERANK: Final = "rerank"
"""The lane, the stage, and the name in `degraded`."""

_GRACE_S: Final = 1.0  # the caller gives up before, and knows then that it was late
_PATIENCE: Final = 0.25  # of the time left, for a turn
_BATCH: Final = 32  # texts that text-embeddings-inference takes at a time by default
_LONGEST_ANSWER: Final = 4_000_000  # bytes; some servers give every text back

_MS_PER_DAY: Final = 86_400_000

Values = Mapping[str, Sequence[Any]]
"""By field, the value of each candidate in the order of `Fused.order`, as its document has it, None for none."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """The candidates in their last order. order: (m,) columns of the table, or of the best of each group; scores:
    (u,); boosts: (b, u), what each boost adds; reranked: by column, the reranking model's score; groups: by column,
    the `HitGroup`, if the request groups."""

    order: list[int]
    scores: Float64Array
    boosts: Float64Array
    reranked: Mapping[int, float] = field(default_factory=dict)
    groups: Mapping[int, Plain] = field(default_factory=dict)


def ranked(request: SearchRequest, fused: Fused, values: Values, kinds: Mapping[str, FieldKind]) -> Ranked:
    """Order the candidates by boosts and sorting."""
    columns = fused.order
    scores, boosts = fused.scores, np.zeros((len(request.boosts), fused.scores.size))
    now = time() * 1e3
    for index, boost in enumerate(request.boosts):
        kind, share = kinds[boost.field], _share(boost, kinds[boost.field], now)
        of_each = (max(map(share, values_of(kind, value)), default=0.0) for value in values[boost.field])
        boosts[index, columns] = np.fromiter(of_each, np.float64, columns.size) * boost.weight
    rows = np.arange(columns.size)
    if request.boosts:
        scores = scores + boosts.sum(axis=0)
        rows = np.argsort(-scores[columns], kind="stable")
    if request.sort is not None:
        rows = _sorted(request.sort, kinds[request.sort.field], values[request.sort.field], rows)
    return Ranked(columns[rows].tolist(), scores, boosts)


def grouped(
    request: SearchRequest, ranking: Ranked, values: Values, columns: npt.NDArray[np.intp], pinned: Sequence[int]
) -> Ranked:
    """Put the `reranked` columns of a ranking into the order of their scores, the columns `pinned` first, and those of
    one value into groups if the request has them; `values` are those of the `columns`. A document without a value, or
    with an empty text, an object or a list, is alone."""
    order = sorted(ranking.reranked, key=lambda column: -ranking.reranked[column])
    order = list(dict.fromkeys([*pinned, *order, *ranking.order[len(order) :]]))
    if request.group_by is None:
        return replace(ranking, order=order)
    by_column = dict(zip(columns.tolist(), values[request.group_by], strict=True))
    best, groups = dict[object, int](), dict[int, Plain]()
    for column in order:
        value = by_column[column]
        single = isinstance(value, str | int | float) and value != ""
        key: object = (type(value) is bool, value) if single else column
        first = best.setdefault(key, column)
        groups.setdefault(first, {"value": value if single else None, "candidates": 0})["candidates"] += 1
    return replace(ranking, order=[*groups], groups=groups)


def _share(boost: Boost, kind: FieldKind, now: float) -> Callable[[float], float]:
    """Return the share of a boost's weight, from 0 to 1, that a value has. `now` is in milliseconds since 1970."""
    if boost.half_life is None:
        most = math.log1p(boost.scale or 0.0)
        return lambda value: min(1.0, math.log1p(max(0.0, value)) / most)
    if kind == "date":
        origin = now if boost.origin is None else milliseconds(boost.origin)
        half = boost.half_life * _MS_PER_DAY
    else:
        origin, half = number(boost.origin), boost.half_life
    return lambda value: float(0.5 ** (abs(value - origin) / half))


def _sorted(sort: Sort, kind: FieldKind, values: Sequence[Any], rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    descending = sort.order == "desc"
    first = max if descending else min
    keys = [first(values_of(kind, value), default=None) for value in values]
    present = [row for row in rows.tolist() if keys[row] is not None]
    present.sort(key=keys.__getitem__, reverse=descending)  # stable, also in reverse
    return np.array([*present, *(row for row in rows.tolist() if keys[row] is None)], np.intp)


class _NoRedirects(HTTPRedirectHandler):
    """Makes a redirect an error: followed, it would carry the key to another host."""

    def redirect_request(self, *redirect: object) -> None:
        return None


_OPENER: Final = build_opener(ProxyHandler({}), _NoRedirects())


class Reranker:
    """Asks the model at `url` for the relevance of the first `top` candidates. Thread-safe.

    Fewer searches than there are threads wait for the model at a time. Another one waits for a quarter of its time left
    at most, and not at all while a search has waited so long already: a model that hangs doesn't stop the others.
    """

    def __init__(self, url: str, settings: Settings) -> None:
        self.top = settings.rerank_top
        self._limit = max(1, settings.threads() - 1)
        self._asking: list[float] = []  # `perf_counter` times
        self._changed = Condition()
        self._url = url
        self._model = settings.rerank_model
        self._characters = settings.rerank_characters
        self._headers = {"content-type": "application/json", "accept": "application/json"}
        if settings.rerank_api_key is not None:
            self._headers["authorization"] = f"Bearer {settings.rerank_api_key}"

    def scores(self, query: str, documents: Sequence[dict[str, Any]], deadline: float) -> list[float]:
        """Return a score for each document, of its title and text, and give up a second after the `perf_counter` time
        `deadline`. TimeoutError if too many searches wait, OSError for no answer, ValueError for one of other JSON."""
        begun = self._begin(deadline)
        try:
            return self._scores(query, documents, deadline)
        finally:
            with self._changed:
                self._asking.remove(begun)
                self._changed.notify()

    def _begin(self, deadline: float) -> float:
        """Wait for a turn, and return the `perf_counter` time of its begin. TimeoutError if there is none in time."""
        now = perf_counter()
        patience_s = _PATIENCE * (deadline - now)
        with self._changed:
            while len(self._asking) >= self._limit:
                left_s = min(now, self._asking[0]) + patience_s - perf_counter()
                if left_s <= 0 or not self._changed.wait(left_s):
                    raise TimeoutError("As many searches as may wait for the reranking model.")
            begun = perf_counter()
            self._asking.append(begun)
            return begun

    def _scores(self, query: str, documents: Sequence[dict[str, Any]], deadline: float) -> list[float]:
        texts, scores = [text_of(fields)[: self._characters] for fields in documents], list[float]()
        for start in range(0, len(texts), _BATCH):
            if start and perf_counter() > deadline:
                raise OSError(f"the reranker had read {start} of {len(texts)} texts when the time was over")
            part = texts[start : start + _BATCH]
            body = {"query": query, "texts": part, "truncate": True}
            if self._model is not None:
                body = {"model": self._model, "query": query, "documents": part, "top_n": len(part)}
            request = Request(self._url, orjson.dumps(body), self._headers)
            try:
                with _OPENER.open(request, timeout=max(0.0, deadline - perf_counter()) + _GRACE_S) as answer:
                    content = answer.read(_LONGEST_ANSWER)
            except HTTPError as error:
                raise OSError(f"the reranker answered {error.code}: {error.read(300)!r}") from error
            scores += _read(content, len(part), named=self._model is not None)
        return scores


def _read(content: bytes, count: int, named: bool) -> list[float]:
    """Read a list of one {"index": i, "score": s} for each text, in any order. Where the request named the model, it is
    {"results": list}, and the score is "relevance_score"."""
    answer = json.loads(content)
    try:
        results, score = (answer["results"], "relevance_score") if named else (answer, "score")
        by_index = {item["index"]: float(item[score]) for item in results}
        scores = [by_index[index] for index in range(count)]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"the reranker did not give an index and a score for each text: {content[:200]!r}") from error
    if len(results) != count or not all(map(math.isfinite, scores)):
        raise ValueError(f"the reranker gave {len(results)} scores for {count} texts, or one that is not finite")
    return scores
