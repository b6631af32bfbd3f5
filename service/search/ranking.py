"""The order of the candidates after fusion: boosts, diversity, sorting, a reranking model, and groups.

    boosted(d) = fused(d) + sum of what each boost adds

Diversity is maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998): the next document is the one with the
highest (1 - diversity) * r(d) - diversity * max over those before it of max(0, cos(d, other)), where r maps the
candidates' scores onto 0 to 1. All steps look at all candidates, so pages have one common order.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.corpus.fields import FieldKind, keyword, milliseconds, number
from lightretriever.service.schemas import Boost, SearchRequest, Sort
from lightretriever.service.search.fusion import Fused

__all__ = ["Group", "Ranked", "fields_to_rank", "ranked", "values_of"]

_MS_PER_DAY: Final = 86_400_000
_READ: Final[Mapping[FieldKind, Callable[[object], Any]]] = {
    "keyword": keyword,
    "number": number,
    "date": milliseconds,
}

Columns = list[int]
Values = Mapping[str, Sequence[Any]]
"""By field, the value of each candidate in the order of `Fused.order`, as its document has it, None for none."""


@dataclass(frozen=True, slots=True)
class Group:
    """Candidates that share a value: its best `columns`, best first, of `size` candidates."""

    value: str | int | float | bool | None
    columns: Columns
    size: int


@dataclass(frozen=True, slots=True)
class Ranked:
    """The candidates in their last order. order: (m,) columns of the table, or of the best of each group; scores:
    (u,); boosts: (b, u), what each boost adds; reranked: by column, the reranking model's score; groups: as many as
    `order`, if the request groups."""

    order: Columns
    scores: npt.NDArray[np.float64]
    boosts: npt.NDArray[np.float64]
    reranked: Mapping[int, float] = field(default_factory=dict)
    groups: list[Group] | None = None


def fields_to_rank(request: SearchRequest) -> list[str]:
    """Give the document fields that the order depends on."""
    names = [boost.field for boost in request.boosts]
    names += [] if request.sort is None else [request.sort.field]
    names += [] if request.group_by is None else [request.group_by]
    return list(dict.fromkeys(names))


def ranked(
    request: SearchRequest,
    fused: Fused,
    values: Values,
    kinds: Mapping[str, FieldKind],
    vectors: Callable[[], npt.NDArray[np.float32]],
    rerank: Callable[[npt.NDArray[np.intp]], Sequence[float]],
    require_time: Callable[[], None],
    pinned: Sequence[int] = (),
) -> Ranked:
    """Order the candidates as the request says, but the columns `pinned` first.

    kinds: those of the declared fields. vectors: gives the candidates' vectors (m, D) of length 1, in the order of
    `Fused.order`. rerank: gives the reranking model's scores of the first of the given columns, or none. `require_time`
    is called between the steps of diversity and may raise.
    """
    columns = fused.order
    scores, boosts = fused.scores, np.zeros((len(request.boosts), fused.scores.size))
    now = time() * 1e3
    for row, boost in enumerate(request.boosts):
        require_time()
        kind, share = kinds[boost.field], _share(boost, kinds[boost.field], now)
        found = (max(map(share, values_of(kind, value)), default=0.0) for value in values[boost.field])
        boosts[row, columns] = np.fromiter(found, np.float64, columns.size) * boost.weight
    places = np.arange(columns.size)
    if request.boosts:
        scores = scores + boosts.sum(axis=0)
        places = np.argsort(-scores[columns], kind="stable")
    if request.diversity and columns.size:
        steps = columns.size if request.group_by else min(columns.size, request.offset + request.k)
        places = _diverse(scores[columns], places, vectors(), request.diversity, steps, require_time)
    require_time()
    if request.sort is not None:
        places = _sorted(request.sort, kinds[request.sort.field], values[request.sort.field], places)
    order = columns[places].tolist()
    reranked = dict(zip(order, rerank(columns[places]), strict=False))
    order[: len(reranked)] = sorted(reranked, key=lambda column: -reranked[column])
    if pinned:
        order = [*pinned, *(column for column in order if column not in pinned)]
    if request.group_by is None:
        return Ranked(order, scores, boosts, reranked)
    by_column = dict(zip(columns.tolist(), values[request.group_by], strict=True))
    groups = _grouped(order, [by_column[column] for column in order], request.group_size)
    return Ranked([group.columns[0] for group in groups], scores, boosts, reranked, groups)


def _share(boost: Boost, kind: FieldKind, now: float) -> Callable[[float], float]:
    """Give the share of a boost's weight, from 0 to 1, that a value has. `now` is in milliseconds since 1970."""
    if boost.half_life is None:
        most = math.log1p(boost.scale or 0.0)
        return lambda value: min(1.0, math.log1p(max(0.0, value)) / most)
    if kind == "date":
        origin = now if boost.origin is None else milliseconds(boost.origin)
        half = boost.half_life * _MS_PER_DAY
    else:
        origin, half = number(boost.origin), boost.half_life
    return lambda value: float(0.5 ** (abs(value - origin) / half))


def values_of(kind: FieldKind, value: object) -> Iterator[Any]:
    """Give the values of a declared field, as a document has them in JSON: texts, numbers, milliseconds since 1970."""
    for one in value if isinstance(value, list) else [] if value is None else [value]:
        with suppress(ValueError):  # an older version of the writer let it pass
            yield _READ[kind](one)


def _sorted(sort: Sort, kind: FieldKind, values: Sequence[Any], places: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    descending = sort.order == "desc"
    first = max if descending else min
    keys = [first(values_of(kind, value), default=None) for value in values]
    known = [place for place in places.tolist() if keys[place] is not None]
    known.sort(key=keys.__getitem__, reverse=descending)  # stable, also in reverse
    return np.array([*known, *(place for place in places.tolist() if keys[place] is None)], np.intp)


def _grouped(order: Columns, values: Sequence[Any], size: int) -> list[Group]:
    """Group columns, best first, by their values; a document without one, or with an empty text, an object or a list,
    is alone."""
    groups: dict[object, Group] = {}
    for column, value in zip(order, values, strict=True):
        single = isinstance(value, str | int | float) and value != ""
        key: object = (type(value) is bool, value) if single else column
        group = groups.get(key)
        if group is None:
            groups[key] = Group(value if single else None, [column], 1)
        else:
            columns = group.columns if len(group.columns) >= size else [*group.columns, column]
            groups[key] = Group(group.value, columns, group.size + 1)
    return list(groups.values())


def _diverse(
    scores: npt.NDArray[np.float64],
    places: npt.NDArray[np.intp],
    vectors: npt.NDArray[np.float32],
    diversity: float,
    steps: int,
    require_time: Callable[[], None],
) -> npt.NDArray[np.intp]:
    """Choose `steps` candidates one after the other; the others follow in their order."""
    spread = scores.max() - scores.min()
    relevance = (scores - scores.min()) / spread if spread > 0 else np.ones(scores.size)
    nearest, left = np.zeros(scores.size), np.ones(scores.size, bool)
    tie = np.empty(scores.size)
    tie[places] = np.arange(scores.size)
    chosen = np.empty(steps, np.intp)
    for step in range(steps):
        require_time()
        value = np.where(left, (1 - diversity) * relevance - diversity * nearest, -math.inf)
        best = np.flatnonzero(value == value.max())
        place = best[np.argmin(tie[best])]
        chosen[step], left[place] = place, False
        nearest = np.maximum(nearest, np.einsum("md,d->m", vectors, vectors[place]))  # `@` would start BLAS's threads
    return np.concatenate([chosen, places[left[places]]])
