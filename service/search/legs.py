"""Asks the legs of a search: each in its lane, or all legs of a cluster in one trip."""

from collections.abc import Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NoReturn

from lightretriever.service.backends.base import (
    DocumentFilter,
    EncodedQuery,
    Leg,
    Ordinals,
    ScoredDocuments,
    Scores,
    UnavailableError,
)
from lightretriever.service.errors import UNAVAILABLE, DeadlineError, NotReadyError, SearchFailedError
from lightretriever.service.execution.executor import Outcome, Reason, split
from lightretriever.service.schemas import LegName
from lightretriever.service.search.plan import Parts

__all__ = ["give_up", "score_legs", "search_legs"]


def search_legs(
    parts: Parts,
    names: Iterable[LegName],
    query: EncodedQuery,
    count: int,
    among: DocumentFilter | None,
    until: float,
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


def give_up(missing: Mapping[Any, Reason], errors: Iterable[BaseException | None], share_ms: float) -> NoReturn:
    """Raise DeadlineError or SearchFailedError for legs that are missing, or NotReadyError if their cluster is not
    available; `errors` are theirs, and `share_ms` is the time that they had."""
    if any(isinstance(error, UnavailableError) for error in errors):
        raise NotReadyError(UNAVAILABLE)
    legs = {
        reason: " and ".join(sorted(name for name, why in missing.items() if why == reason))
        for reason in missing.values()
    }
    if "failed" in legs:
        raise SearchFailedError(f"The leg {legs['failed']} failed. The reason is in the log; try again later.")
    if "stuck" in legs:
        raise DeadlineError(f"The leg {legs['stuck']} has no free thread: calls that don't end hold all. Try later.")
    raise DeadlineError(
        f"No answer from the leg {legs['late']} within {share_ms:g} ms, its share of the deadline. "
        "Allow more time, or fewer candidates."
    )


def _scored(leg: Leg, query: EncodedQuery, ordinals: Ordinals, until: float) -> Outcome[Scores]:
    if perf_counter() >= until:
        return Outcome(reason="late")
    try:
        return Outcome(leg.scores(query, ordinals))
    except Exception as error:
        return Outcome(reason="failed", error=error)
