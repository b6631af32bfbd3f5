"""Asks the legs of a search: each in its lane, or all legs of a cluster in one trip."""

from collections.abc import Iterable, Mapping
from functools import partial
from time import perf_counter

from lightretriever.service.backends.base import DocumentFilter, EncodedQuery, Leg, Ordinals, ScoredDocuments, Scores
from lightretriever.service.execution.executor import Outcome, split
from lightretriever.service.schemas import LegName
from lightretriever.service.search.plan import Parts

__all__ = ["score_legs", "search_legs"]


def search_legs(
    parts: Parts, names: Iterable[LegName], query: EncodedQuery, count: int, among: DocumentFilter | None, until: float
) -> dict[LegName, Outcome[ScoredDocuments]]:
    """Search legs in parallel until the `perf_counter` time `until`. Every leg gets an outcome."""
    group = parts.group
    if group is None:
        calls = {name: partial(parts.legs[name].search, query, count, among) for name in names}
        return parts.executor.gather(calls, until)
    trip = partial(group.search, list(names), query, count, among, until)
    return split(parts.executor.gather({group.name: trip}, until)[group.name], names)


def score_legs(
    parts: Parts, wanted: Mapping[LegName, Ordinals], query: EncodedQuery, until: float
) -> dict[LegName, Outcome[Scores]]:
    """Score given documents in each leg: in this thread, which is faster, or on a cluster. As `search_legs`."""
    group = parts.group
    if group is None:
        return {name: _scored(parts.legs[name], query, ordinals, until) for name, ordinals in wanted.items()}
    trip = partial(group.scores, wanted, query, until)
    return split(parts.executor.gather({group.name: trip}, until)[group.name], wanted)


def _scored(leg: Leg, query: EncodedQuery, ordinals: Ordinals, until: float) -> Outcome[Scores]:
    if perf_counter() >= until:
        return Outcome(reason="late")
    try:
        return Outcome(leg.scores(query, ordinals))
    except Exception as error:
        return Outcome(reason="failed", error=error)
