"""Builds the answer of a search: reads the documents of its page, and makes each hit once, of the candidate table, the
document and what the request asks for besides.

Hits are plain dictionaries in the form of `service.schemas`, so that answers are not validated on their way out.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isnan
from time import perf_counter
from typing import Final

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.errors import TooManyValuesError
from lightretriever.artifacts.tokens.tokenizer import document_text
from lightretriever.service.backends.base import NO_TOKENS, DocumentFilter, DocumentsGoneError, EncodedQuery, Ordinals
from lightretriever.service.errors import DeadlineError, FieldError, InvalidRequestError
from lightretriever.service.schemas import LegName, Plain, SearchRequest
from lightretriever.service.search.context import SearchContext
from lightretriever.service.search.documents import reading
from lightretriever.service.search.explain import explanations, query_words
from lightretriever.service.search.filters import count_in_ranges
from lightretriever.service.search.fusion import CandidateTable, Fused
from lightretriever.service.search.matching import LEVELS, Levels, best_match
from lightretriever.service.search.ranking import Group, Ranked
from lightretriever.service.search.request import Plan
from lightretriever.service.search.rules import AppliedRules
from lightretriever.service.search.snippets import snippets_of
from lightretriever.service.search.words import Typed

__all__ = ["Candidates", "SearchedQuery", "build_answer", "build_listing"]

# Every answer has these times.
_UNTIMED: Final = dict.fromkeys(("tokenize", "encode", "dense", "sparse", "rescore", "fuse", "fetch"))
_NO_QUERY: Final = EncodedQuery([], NO_TOKENS.counts, NO_TOKENS.weights, NO_TOKENS, None)

Documents = Sequence[tuple[str, Plain]]
"""Documents by id and fields."""


_BY_RULE: Final = "A rule puts this document first for this query."
_LIKE: Final = "The query is the document {}: its vector and its heaviest terms."
_BY_NAME: Final = "The query is the id of this document, which puts it first."


@dataclass(frozen=True, slots=True)
class SearchedQuery:
    """A query as it was searched for. extra_terms: texts that counted beside it, with their weights."""

    typed: Typed
    encoded: EncodedQuery
    extra_terms: Sequence[tuple[str, float]]
    rules: AppliedRules


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of a search in their order.

    legs: names of the table's rows. levels: how well each column matches; None if `unjudged` says why not. unmatched:
    how many candidates `min_matched` left out, None if the request has none. pinned: ids of the documents that come
    first, by a rule or because the query is their id.
    """

    legs: Sequence[LegName]
    table: CandidateTable
    fused: Fused
    levels: Levels | None
    unjudged: str | None
    unmatched: int | None
    ranking: Ranked
    pinned: Sequence[str]


def build_answer(context: SearchContext, query: SearchedQuery, candidates: Candidates) -> Plain:
    """Read the page's documents, and return the answer as `SearchResponse`. DeadlineError if there is no time left for
    a part of it, and errors as in `Documents`."""
    plan, table = context.plan, candidates.table
    request = plan.request
    columns = _page(candidates.ranking, request.offset, request.k)
    documents = _fetch(context, table.ordinals[columns])
    hits = _hits(candidates, columns, _kept(documents, request), request.offset)
    if request.snippets is not None:
        _add_snippets(context, query.encoded, documents, hits)
    if request.explain and hits:
        with context.clock.measure("explain"):
            _add_explanations(context, query, candidates, columns, hits)
    if candidates.ranking.groups is not None:
        hits = _in_groups(hits, candidates.ranking.groups, request.offset)
    answer: Plain = {
        "hits": hits,
        "degraded": sorted(context.missing),
        "mode": request.mode,
        "task": plan.task,
        "candidates": table.ordinals.size,
        **best_match(candidates.levels, candidates.unjudged),
    }
    if plan.task in context.parts.encoder.heads and request.like is None:
        answer["head_query"] = query.encoded.head
    if request.facets or plan.ranges:
        ordinals = table.ordinals
        if candidates.unmatched is not None:
            ordinals = ordinals[np.sort(candidates.fused.order)]
        answer |= _facets(context, ordinals)
    answer["timings_ms"] = _UNTIMED | context.clock.milliseconds()
    answer |= _typed(query.typed)
    answer |= query.rules.facts([name for name in candidates.pinned if name in query.rules.pinned])
    if candidates.unmatched is not None:
        answer["unmatched"] = candidates.unmatched
    return answer


def build_listing(context: SearchContext, ordinals: Ordinals, total: int, allowed: DocumentFilter | None) -> Plain:
    """Read the documents of a page without a query, and return the answer as `SearchResponse`: `total` documents match,
    those `allowed`. Errors as in `build_answer`."""
    plan, request = context.plan, context.plan.request
    documents = _fetch(context, ordinals)
    hits: list[Plain] = [
        {"id": document_id, "rank": rank, "score": 0.0, "dense": None, "sparse": None, "fields": fields}
        for rank, (document_id, fields) in enumerate(_kept(documents, request), start=request.offset + 1)
    ]
    if request.snippets is not None:
        _add_snippets(context, _NO_QUERY, documents, hits)
    if request.explain:
        explanation = {"fusion": {"dense": None, "sparse": None}, "words": [], "note": _order_of(plan)}
        for hit in hits:
            hit["explanation"] = explanation
    answer: Plain = {"hits": hits, "degraded": [], "mode": request.mode, "task": plan.task}
    answer |= {"candidates": total, "total": total}
    if request.facets or plan.ranges:
        answer |= _facets_of_all(context, allowed)
    return answer | {"timings_ms": _UNTIMED | context.clock.milliseconds()}


def _page(ranking: Ranked, offset: int, count: int) -> npt.NDArray[np.intp]:
    """Return the columns of a page's hits; of groups those of all their hits."""
    window = slice(offset, offset + count)
    if ranking.groups is None:
        return np.array(ranking.order[window], np.intp)
    return np.array([column for group in ranking.groups[window] for column in group.columns], np.intp)


def _fetch(context: SearchContext, ordinals: Ordinals) -> Documents:
    """Read the documents of a page: the fields that the request names, and those that it wants snippets of."""
    request = context.plan.request
    names = request.fields
    if names is not None and request.snippets is not None:
        names = [*names, *request.snippets.fields]
    context.require_time("read the documents")
    started = perf_counter()
    documents = context.parts.documents.fetch(ordinals, names)
    context.clock.add("fetch", started)
    return documents


def _add_snippets(context: SearchContext, query: EncodedQuery, documents: Documents, hits: list[Plain]) -> None:
    """Add the snippets of each hit's document."""
    wanted = context.plan.request.snippets
    if wanted is None or not documents:
        return
    with context.clock.measure("snippets"):
        vocabulary, names = context.parts.encoder.vocabulary, list(dict.fromkeys(wanted.fields))
        fields = [fields for _, fields in documents]
        snippets = snippets_of(fields, vocabulary, query, names, wanted.length, context.require_time)
    for hit, of_hit in zip(hits, snippets, strict=True):
        hit["snippets"] = of_hit


def _kept(documents: Documents, request: SearchRequest) -> Documents:
    """Leave out fields that were read for snippets alone."""
    names = request.fields
    if names is None or request.snippets is None:
        return documents
    return [
        (document_id, {name: fields[name] for name in names if name in fields}) for document_id, fields in documents
    ]


def _hits(candidates: Candidates, columns: npt.NDArray[np.intp], documents: Documents, offset: int) -> list[Plain]:
    """Return the hits of a page, as `Hit`, after `offset` other hits. columns: (k,) of the table, best first, with as
    many documents."""
    table, ranking = candidates.table, candidates.ranking
    of_legs: dict[LegName, Sequence[Plain | None]] = {"dense": [None] * columns.size, "sparse": [None] * columns.size}
    for row, name in enumerate(candidates.legs):
        cells = zip(table.scores[row, columns].tolist(), table.ranks[row, columns].tolist(), strict=True)
        of_legs[name] = [None if isnan(score) else {"score": score, "rank": rank or None} for score, rank in cells]
    totals = ranking.scores[columns].tolist()
    levels = None if candidates.levels is None else candidates.levels[columns].tolist()
    hits = []
    for place, (column, (document_id, fields)) in enumerate(zip(columns.tolist(), documents, strict=True)):
        hit: Plain = {
            "id": document_id,
            "rank": offset + place + 1,
            "score": totals[place],
            "dense": of_legs["dense"][place],
            "sparse": of_legs["sparse"][place],
            "fields": fields,
        }
        if levels is not None and levels[place] >= 0:
            hit["matched"] = LEVELS[levels[place]]
        if column in ranking.reranked:
            hit["rerank"] = ranking.reranked[column]
        hits.append(hit)
    return hits


def _in_groups(hits: list[Plain], groups: Sequence[Group], offset: int) -> list[Plain]:
    """Put the further hits of each group into its best one. The page begins with the group of rank `offset` + 1."""
    rest, best_hits = iter(hits), list[Plain]()
    for group in groups[offset:]:
        of_group = [hit for _, hit in zip(group.columns, rest, strict=False)]
        if not of_group:
            break
        best, *others = of_group
        for rank, hit in enumerate(others, start=2):
            hit["rank"] = rank
        best["rank"] = offset + len(best_hits) + 1
        best["group"] = {"value": group.value, "candidates": group.size, "hits": others}
        best_hits.append(best)
    return best_hits


def _add_explanations(
    context: SearchContext,
    query: SearchedQuery,
    candidates: Candidates,
    columns: npt.NDArray[np.intp],
    hits: list[Plain],
) -> None:
    """Explain the hits of these columns."""
    parts, encoded, ordinals = context.parts, query.encoded, candidates.table.ordinals[columns]
    if not encoded.head and "dense" in candidates.legs:
        encoded = parts.encoder.with_parts(encoded, context.plan.task)
    shares = {}
    for name in candidates.legs:
        if not (encoded.head and name == "dense") and (of_leg := _shares(context, name, encoded, ordinals)) is not None:
            shares[name] = of_leg
    words = query_words(query.typed.searched, query.extra_terms, encoded, parts.encoder)
    read = parts.documents.fetch(ordinals, ["title", "text"])
    texts = [document_text(*(str(fields.get(name) or "") for name in ("title", "text"))) for _, fields in read]
    fusion = candidates.fused.shares[:, columns]
    explained = explanations(
        encoded, words, parts.encoder, fusion, candidates.legs, shares, texts, context.require_time
    )
    feedback, boosts = candidates.fused.feedback, candidates.ranking.boosts[:, columns].T.tolist()
    for place, (hit, explanation) in enumerate(zip(hits, explained, strict=True)):
        if feedback is not None:
            explanation["fusion"]["feedback"] = float(feedback[columns[place]])
        if boosts[place]:
            explanation["boosts"] = boosts[place]
        if (like := context.plan.request.like) is not None:
            explanation["note"] = _LIKE.format(like)
        if hit["id"] in candidates.pinned:
            by_rule = hit["id"] in query.rules.pinned
            explanation["note"] = _BY_RULE if by_rule else _BY_NAME
        hit["explanation"] = explanation


def _shares(
    context: SearchContext, name: LegName, query: EncodedQuery, ordinals: Ordinals
) -> npt.NDArray[np.float32] | None:
    """Return each term's or token's share of a leg's score of documents; None if the leg fails."""
    try:
        return context.parts.backends.legs[name].shares(query, ordinals)
    except DocumentsGoneError:
        raise
    except TimeoutError as error:
        raise DeadlineError(
            "There was no time left to read which words the documents have. Allow more time."
        ) from error
    except Exception as error:
        context.log_failure(name, error)
        return None


def _facets(context: SearchContext, ordinals: Ordinals) -> Plain:
    """Return the facets that the request asks for, of documents (m,). InvalidRequestError for a field of too many
    values."""
    plan, documents = context.plan, context.parts.documents
    context.require_time("count the facets")
    facets: Plain = {}
    with context.clock.measure("facets"), reading():
        if plan.request.facets:
            with _few_values():
                facets["facets"] = {
                    name: _counted(documents.store.counts(name, ordinals)) for name in plan.request.facets
                }
        if plan.ranges:
            read = [fields for _, fields in documents.fetch(ordinals, list(plan.ranges))]
            facets["facet_ranges"] = {
                name: ranges.counted(count_in_ranges(ranges, (fields.get(name) for fields in read)))
                for name, ranges in plan.ranges.items()
            }
    return facets


def _facets_of_all(context: SearchContext, allowed: DocumentFilter | None) -> Plain:
    """Return the facets that the request asks for, of all documents `allowed`. InvalidRequestError as in `_facets`."""
    plan, store = context.plan, context.parts.documents.store
    context.require_time("count the facets")
    facets: Plain = {}
    with context.clock.measure("facets"), reading():
        if plan.request.facets:
            with _few_values():
                facets["facets"] = {name: _counted(store.counts_among(name, allowed)) for name in plan.request.facets}
        if plan.ranges:
            chosen = []
            for condition in (one for ranges in plan.ranges.values() for one in ranges.conditions):
                context.require_time("count the facets")
                chosen.append(store.where(condition))
            totals = iter(store.totals(chosen, allowed))
            facets["facet_ranges"] = {
                name: ranges.counted(next(totals) for _ in ranges.conditions) for name, ranges in plan.ranges.items()
            }
    return facets


@contextmanager
def _few_values() -> Iterator[None]:
    """Raise InvalidRequestError for a field of too many values to count."""
    try:
        yield
    except TooManyValuesError as error:
        raise InvalidRequestError.of(FieldError("facets", str(error))) from error


def _counted(counts: Sequence[tuple[str, int]]) -> list[Plain]:
    return [{"value": value, "count": count} for value, count in counts]


def _typed(typed: Typed) -> Plain:
    """Return `searched`, `did_you_mean` and `completions`."""
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
