"""Builds the answer of a search: reads the documents of its page, and makes each hit once, of the candidate table, the
document and what the request asks for besides.

Hits are plain dictionaries in the form of `service.schemas`, so that answers are not validated on their way out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from time import perf_counter
from typing import Final

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.errors import TooManyValuesError
from lightretriever.artifacts.tokens.tokenizer import document_text
from lightretriever.service.backends.base import NO_TOKENS, DocumentFilter, EncodedQuery, Ordinals
from lightretriever.service.errors import DeadlineError, FieldError, InvalidRequestError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LegName, Plain, SearchRequest, Snippet
from lightretriever.service.search.documents import reading
from lightretriever.service.search.explain import explanations, query_words
from lightretriever.service.search.filters import count_in_ranges
from lightretriever.service.search.fusion import CandidateTable, Fused
from lightretriever.service.search.matching import LEVELS, Levels, best_match
from lightretriever.service.search.parts import Parts
from lightretriever.service.search.ranking import Ranked
from lightretriever.service.search.request import Plan
from lightretriever.service.search.rules import AppliedRules
from lightretriever.service.search.snippets import snippets_of
from lightretriever.service.search.words import Typed

__all__ = ["Found", "Running", "build_answer", "build_listing"]

# Every answer has these times.
_UNTIMED: Final = dict.fromkeys(("tokenize", "encode", "dense", "sparse", "rescore", "fuse", "fetch"))
_NO_QUERY: Final = EncodedQuery([], NO_TOKENS.counts, NO_TOKENS.weights, NO_TOKENS, None)

Documents = Sequence[tuple[str, Plain]]
"""Documents by id and fields."""

Shares = Callable[[Ordinals], Mapping[LegName, npt.NDArray[np.float32]]]
"""Gives by leg the share of the leg's score of documents (k,): (k, t) of each term, (k, u) of each token."""


class Running:
    """A search under way: the parts that it uses, its request, and its clock."""

    def __init__(self, parts: Parts, plan: Plan, clock: StageClock) -> None:
        self.parts = parts
        self.plan = plan
        self.clock = clock

    def until(self, share: float = 1.0) -> float:
        """Give the `perf_counter` time at which a share of the deadline is over."""
        return self.clock.arrived + share * self.plan.deadline_ms / 1e3

    def require_time(self, task: str) -> None:
        """Raise DeadlineError, which names the task, if the deadline is over."""
        if perf_counter() >= self.until():
            raise DeadlineError(
                f"There was no time left to {task} within {self.plan.deadline_ms:g} ms. "
                "Allow more time, or ask for less."
            )


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found, to be answered.

    legs: names of the table's rows. levels: how well each column matches, None if that can't be told. unmatched: how
    many candidates `min_matched` left out, None if the request has none. extra_terms: texts that counted beside the
    query, with their weights. pinned: ids of the documents that rules put first. degraded: what gave no answer.
    """

    typed: Typed
    query: EncodedQuery
    extra_terms: Sequence[tuple[str, float]]
    legs: Sequence[LegName]
    table: CandidateTable
    fused: Fused
    levels: Levels | None
    unmatched: int | None
    ranking: Ranked
    rules: AppliedRules | None
    pinned: Sequence[str]
    degraded: Sequence[str]


def build_answer(running: Running, found: Found, shares: Shares) -> Plain:
    """Read the page's documents, and give the answer as `SearchResponse`. DeadlineError if there is no time left for a
    part of it, and errors as in `Documents`."""
    request, plan, table, store = running.plan.request, running.plan, found.table, running.parts.documents.store
    columns = _page(found.ranking, request.offset, request.k)
    documents = _fetch(running, table.ordinals[columns])
    snippets = _snippets(running, found.query, documents)
    explained = None
    if request.explain and documents:
        with running.clock.measure("explain"):
            explained = _explained(running, found, shares, columns, [document_id for document_id, _ in documents])
    among = table.ordinals if found.unmatched is None else table.ordinals[np.sort(found.fused.order)]
    return {
        "hits": _hits(found, columns, _kept(documents, request), snippets, explained, request.offset),
        "degraded": list(found.degraded),
        "mode": request.mode,
        "task": plan.task,
        "candidates": table.ordinals.size,
        **best_match(found.levels),
        **({"head_query": found.query.head} if plan.task in running.parts.encoder.heads else {}),
        **_facets(running, lambda name: store.counts(name, among), partial(_in_ranges, running, among)),
        "timings_ms": _UNTIMED | running.clock.milliseconds(),
        **_typed(found.typed),
        **({} if found.rules is None else found.rules.facts(found.pinned)),
        **({} if found.unmatched is None else {"unmatched": found.unmatched}),
    }


def build_listing(running: Running, ordinals: Ordinals, total: int, among: DocumentFilter | None) -> Plain:
    """Read the documents of a page without a query, and give the answer as `SearchResponse`: `total` documents match,
    those `among`. Errors as in `build_answer`."""
    request, plan, store = running.plan.request, running.plan, running.parts.documents.store
    documents = _fetch(running, ordinals)
    hits: list[Plain] = [
        {"id": document_id, "rank": rank, "score": 0.0, "dense": None, "sparse": None, "fields": fields}
        for rank, (document_id, fields) in enumerate(_kept(documents, request), start=request.offset + 1)
    ]
    for hit, snippet in zip(hits, _snippets(running, _NO_QUERY, documents) or (), strict=False):
        hit["snippets"] = snippet
    if request.explain:
        explanation = {"fusion": {"dense": None, "sparse": None}, "words": [], "note": _order_of(plan)}
        for hit in hits:
            hit["explanation"] = explanation
    facts: Plain = {"hits": hits, "degraded": [], "mode": request.mode, "task": plan.task}
    facts |= {"candidates": total, "total": total}
    facts |= _facets(running, lambda name: store.counts_among(name, among), partial(_all_in_ranges, running, among))
    return facts | {"timings_ms": _UNTIMED | running.clock.milliseconds()}


def _page(ranking: Ranked, offset: int, count: int) -> npt.NDArray[np.intp]:
    """Give the columns of a page's hits; of groups those of all their hits."""
    window = slice(offset, offset + count)
    if ranking.groups is None:
        return np.array(ranking.order[window], np.intp)
    return np.array([column for group in ranking.groups[window] for column in group.columns], np.intp)


def _fetch(running: Running, ordinals: Ordinals) -> Documents:
    """Read the documents of a page: the fields that the request names, and those that it wants snippets of."""
    request = running.plan.request
    names = request.fields
    if names is not None and request.snippets is not None:
        names = [*names, *request.snippets.fields]
    running.require_time("read the documents")
    with running.clock.measure("fetch"):
        return running.parts.documents.fetch(ordinals, names)


def _snippets(running: Running, query: EncodedQuery, documents: Documents) -> list[dict[str, Snippet]] | None:
    """Give the snippets of each document; None unless there are such."""
    wanted = running.plan.request.snippets
    if wanted is None or not documents:
        return None
    with running.clock.measure("snippets"):
        vocabulary, names = running.parts.encoder.vocabulary, list(dict.fromkeys(wanted.fields))
        require_time = partial(running.require_time, "make the snippets")
        every = [fields for _, fields in documents]
        return snippets_of(every, vocabulary, query, names, wanted.length, require_time)


def _kept(documents: Documents, request: SearchRequest) -> Documents:
    """Leave out fields that were read for snippets alone."""
    names = request.fields
    if names is None or request.snippets is None:
        return documents
    return [
        (document_id, {name: fields[name] for name in names if name in fields}) for document_id, fields in documents
    ]


def _hits(
    found: Found,
    columns: npt.NDArray[np.intp],
    documents: Documents,
    snippets: Sequence[Mapping[str, Snippet]] | None,
    explained: Sequence[Plain] | None,
    offset: int,
) -> list[Plain]:
    """Give the hits of a page, as `Hit`, after `offset` other hits; of groups each one's best, with the others below.

    columns: (k,) of the table, best first, with as many documents, snippets and explanations.
    """
    table, ranking = found.table, found.ranking
    scores = ranking.scores[columns].tolist()
    of_legs: dict[LegName, Sequence[Plain | None]] = {"dense": [None] * columns.size, "sparse": [None] * columns.size}
    for row, name in enumerate(found.legs):
        cells = zip(table.scores[row, columns].tolist(), table.ranks[row, columns].tolist(), strict=True)
        of_legs[name] = [None if isnan(score) else {"score": score, "rank": rank or None} for score, rank in cells]
    levels = [-1] * columns.size if found.levels is None else found.levels[columns].tolist()
    hits = []
    for place, (column, (document_id, fields)) in enumerate(zip(columns.tolist(), documents, strict=True)):
        hit: Plain = {
            "id": document_id,
            "rank": offset + place + 1,
            "score": scores[place],
            "dense": of_legs["dense"][place],
            "sparse": of_legs["sparse"][place],
            "fields": fields,
        }
        if levels[place] >= 0:
            hit["matched"] = LEVELS[levels[place]]
        if snippets is not None:
            hit["snippets"] = snippets[place]
        if explained is not None:
            hit["explanation"] = explained[place]
        if column in ranking.reranked:
            hit["rerank"] = ranking.reranked[column]
        hits.append(hit)
    return hits if ranking.groups is None else _in_groups(hits, ranking, offset)


def _in_groups(hits: list[Plain], ranking: Ranked, offset: int) -> list[Plain]:
    """Put the further hits of each group into its best one. The page begins with the group of rank `offset` + 1."""
    rest, found = iter(hits), list[Plain]()
    for group in (ranking.groups or [])[offset:]:
        of_group = [hit for _, hit in zip(group.columns, rest, strict=False)]
        if not of_group:
            break
        best, *others = of_group
        for rank, hit in enumerate(others, start=2):
            hit["rank"] = rank
        best["rank"] = offset + len(found) + 1
        best["group"] = {"value": group.value, "candidates": group.size, "hits": others}
        found.append(best)
    return found


def _explained(
    running: Running, found: Found, shares: Shares, columns: npt.NDArray[np.intp], ids: Sequence[str]
) -> list[Plain]:
    """Explain the hits of these columns, whose documents have these ids."""
    parts, ordinals, query = running.parts, found.table.ordinals[columns], found.query
    of_legs = shares(ordinals)
    words = query_words(found.typed.searched, found.extra_terms, query, parts.encoder)
    read = parts.documents.fetch(ordinals, ["title", "text"])
    texts = [document_text(*(str(fields.get(name) or "") for name in ("title", "text"))) for _, fields in read]
    require_time = partial(running.require_time, "explain the hits")
    fusion = found.fused.shares[:, columns]
    explained = explanations(query, words, parts.encoder, fusion, found.legs, of_legs, texts, require_time)
    if found.fused.feedback is not None:
        for explanation, feedback in zip(explained, found.fused.feedback[columns].tolist(), strict=True):
            explanation["fusion"]["feedback"] = feedback
    for explanation, document_id, boosts in zip(
        explained, ids, found.ranking.boosts[:, columns].T.tolist(), strict=True
    ):
        if boosts:
            explanation["boosts"] = boosts
        if document_id in found.pinned:
            explanation["note"] = "A rule puts this document first for this query."
    return explained


def _facets(running: Running, values: Callable[[str], list[tuple[str, int]]], ranges: Callable[[], Plain]) -> Plain:
    """Give the facets that the request asks for: `values` counts those of a field, `ranges` the documents in ranges.
    InvalidRequestError for a field of too many values."""
    request, found = running.plan.request, dict[str, Plain]()
    if not request.facets and not running.plan.ranges:
        return found
    running.require_time("count the facets")
    with running.clock.measure("facets"), reading():
        if request.facets:
            try:
                counts = {name: values(name) for name in request.facets}
            except TooManyValuesError as error:
                raise InvalidRequestError.of(FieldError("facets", str(error))) from error
            found["facets"] = {name: [{"value": one, "count": n} for one, n in of] for name, of in counts.items()}
        if running.plan.ranges:
            found["facet_ranges"] = ranges()
    return found


def _in_ranges(running: Running, ordinals: Ordinals) -> Plain:
    """Count the documents (m,) in each range, as `RangeCount`, by field."""
    ranges = running.plan.ranges
    read = [fields for _, fields in running.parts.documents.fetch(ordinals, list(ranges))]
    return {
        name: one.counted(count_in_ranges(one, (fields.get(name) for fields in read))) for name, one in ranges.items()
    }


def _all_in_ranges(running: Running, among: DocumentFilter | None) -> Plain:
    """Count all documents that match the filter, those `among`, in each range, as `RangeCount`, by field."""
    plan, store, chosen = running.plan, running.parts.documents.store, []
    for ranges in plan.ranges.values():
        for condition in ranges.conditions:
            running.require_time("count the facets")
            chosen.append(store.where(condition))
    totals = iter(store.totals(chosen, among))
    return {name: ranges.counted(next(totals) for _ in ranges.conditions) for name, ranges in plan.ranges.items()}


def _typed(typed: Typed) -> Plain:
    """Give `searched`, `did_you_mean` and `completions`."""
    facts: Plain = {} if typed.searched == typed.query else {"searched": typed.searched}
    if typed.meant is not None:
        facts["did_you_mean"] = typed.meant
    if typed.completions:
        facts["completions"] = list(typed.completions)
    return facts


def _order_of(plan: Plan) -> str:
    if plan.order is None:
        return "There is no query: the documents that match are in the order of writing."
    way = "descending" if plan.order.descending else "ascending"
    return f"There is no query: the documents that match are ordered by {plan.order.field}, {way}."
