"""Builds the answer of a search: reads the documents of its page, and makes each hit once, of the candidate table, the
document and what the request asks for besides, and says how well they match: by the bundle's thresholds of the dense
score, and by the query's words that they have.

A document of a strong dense score is a strong match only if it has enough of the query's words, too:

    dense(d) * share(d) >= 0.7 * strong,   share(d) = sum_t impact(t, d) * most(t) / sum_t most(t)^2

over the terms t of the query. most(t) is the largest impact of t among the candidates, times the term's weight in the
query; for a term that none of them has, it is that of the rarest other one. Impacts of words that expansion added are
small, so these count less than the document's own.

Hits are plain dictionaries in the form of `service.schemas`, so that answers are not validated on their way out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan
from time import perf_counter
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.bundle.manifest import MatchThresholds
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import TooManyValuesError
from lightretriever.artifacts.tokens.tokenizer import text_of
from lightretriever.service.backends.base import NO_TOKENS, DocumentFilter, EncodedQuery, Ordinals
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.schemas import LegName, Matched, Plain
from lightretriever.service.search.documents import reading
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.explain import explanations, query_words
from lightretriever.service.search.fusion import CandidateTable, Fused
from lightretriever.service.search.ranking import Ranked
from lightretriever.service.search.request import SearchContext
from lightretriever.service.search.snippets import snippets_of
from lightretriever.service.search.words import STOP_WORDS, WORD

# Every answer has these times.
_UNTIMED: Final = dict.fromkeys(("tokenize", "encode", "dense", "sparse", "rescore", "fuse", "fetch"))
_NO_QUERY: Final = EncodedQuery([], NO_TOKENS.counts, NO_TOKENS.weights, NO_TOKENS, None)

LEVELS: Final[tuple[Matched, ...]] = ("none", "weak", "strong")
"""From the worst to the best."""

Levels = npt.NDArray[np.int8]
"""The level of each candidate (u,), as its place in `LEVELS`; -1 for one without a dense score."""

_TINY: Final = float(np.finfo(np.float64).tiny)
_STRONG: Final = 0.7  # chosen by the ten visible queries of the demo and by seven collections (docs/lab/results.md)

Documents = Sequence[tuple[str, Plain]]
"""Documents by id and fields."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates of a query in their order.

    levels: how well each column matches; None if `unjudged` says why not. pinned: ids of the documents that rules put
    first. named: ordinals of those whose name the query is.
    """

    query: EncodedQuery
    table: CandidateTable
    fused: Fused
    levels: Levels | None
    unjudged: str | None
    ranking: Ranked
    pinned: Sequence[str]
    named: Ordinals


def build_answer(context: SearchContext, candidates: Candidates) -> Plain:
    """Read the page's documents, and return the answer as `SearchResponse`. DeadlineError if there is no time left for
    a part of it, and errors as in `Documents`."""
    plan, table, ranking = context.plan, candidates.table, candidates.ranking
    request, window = plan.request, slice(plan.request.offset, plan.request.offset + plan.request.k)
    columns = np.array(ranking.order[window], np.intp)
    documents = _fetch(context, table.ordinals[columns])
    hits = _hits(candidates, columns, documents, request.offset)
    _add_snippets(context, candidates.query, documents, hits)
    if request.explain and hits:
        with context.clock.measure("explain"):
            _add_explanations(context, candidates, columns, hits)
    answer: Plain = {
        "hits": hits,
        "degraded": sorted(context.missing),
        "mode": request.mode,
        "task": plan.task,
        "candidates": table.ordinals.size,
    }
    if candidates.levels is None:
        answer["unjudged"] = candidates.unjudged
    else:
        answer["matched"] = LEVELS[candidates.levels.max(initial=0)]
    if plan.task in context.parts.encoder.heads and request.like is None:
        answer["head_query"] = candidates.query.head
    if request.facets or plan.ranges:
        answer |= _facets(context, table.ordinals)
    answer["timings_ms"] = _UNTIMED | context.clock.milliseconds()
    answer |= plan.facts
    if "rules" in plan.facts:
        answer["rules"] = plan.facts["rules"] | {"pinned": candidates.pinned}
    return answer


def build_listing(context: SearchContext, ordinals: Ordinals, total: int, allowed: DocumentFilter | None) -> Plain:
    """Read the documents of a page without a query, and return the answer as `SearchResponse`: `total` documents match,
    those `allowed`. Errors as in `build_answer`."""
    plan, request = context.plan, context.plan.request
    documents = _fetch(context, ordinals)
    hits: list[Plain] = [
        {"id": document_id, "rank": rank, "score": 0.0, "dense": None, "sparse": None, "fields": fields}
        for rank, (document_id, fields) in enumerate(documents, start=request.offset + 1)
    ]
    _add_snippets(context, _NO_QUERY, documents, hits)
    if request.explain:
        order = "in the order of writing"
        if request.sort is not None:
            order = f"ordered by {request.sort.field}, {'de' if request.sort.order == 'desc' else 'a'}scending"
        note = f"There is no query: the documents that match are {order}."
        for hit in hits:
            hit["explanation"] = {"fusion": {"dense": None, "sparse": None}, "words": [], "note": note}
    answer: Plain = {"hits": hits, "degraded": [], "mode": request.mode, "task": plan.task}
    answer |= {"candidates": total, "total": total}
    if request.facets or plan.ranges:
        answer |= _facets(context, None, allowed)
    return answer | {"timings_ms": _UNTIMED | context.clock.milliseconds()}


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
    """Add the snippets of each hit's document, and leave out fields that were read for them alone."""
    wanted, kept = context.plan.request.snippets, context.plan.request.fields
    if wanted is None or not documents:
        return
    with context.clock.measure("snippets"):
        vocabulary, names = context.parts.encoder.vocabulary, list(dict.fromkeys(wanted.fields))
        fields = [fields for _, fields in documents]
        snippets = snippets_of(fields, vocabulary, query, names, wanted.length, context.require_time)
    for hit, of_hit in zip(hits, snippets, strict=True):
        hit["snippets"] = of_hit
        if kept is not None:
            hit["fields"] = {name: hit["fields"][name] for name in kept if name in hit["fields"]}


def _hits(candidates: Candidates, columns: npt.NDArray[np.intp], documents: Documents, offset: int) -> list[Plain]:
    """Return the hits of a page, as `Hit`, after `offset` other hits. columns: (k,) of the table, best first."""
    table, ranking = candidates.table, candidates.ranking
    scores, ranks = table.scores[:, columns].T.tolist(), table.ranks[:, columns].T.tolist()
    totals = ranking.scores[columns].tolist()
    levels = None if candidates.levels is None else candidates.levels[columns].tolist()
    hits = []
    for row, (column, (document_id, fields)) in enumerate(zip(columns.tolist(), documents, strict=True)):
        rank, total = offset + row + 1, totals[row]
        hit: Plain = {"id": document_id, "rank": rank, "score": total, "dense": None, "sparse": None, "fields": fields}
        for name, score, of_leg in zip(table.legs, scores[row], ranks[row], strict=True):
            if not isnan(score):
                hit[name] = {"score": score, "rank": of_leg or None}
        if levels is not None and levels[row] >= 0:
            hit["matched"] = LEVELS[levels[row]]
        if column in ranking.reranked:
            hit["rerank"] = ranking.reranked[column]
        if column in ranking.groups:
            hit["group"] = ranking.groups[column]
        hits.append(hit)
    return hits


def _add_explanations(
    context: SearchContext, candidates: Candidates, columns: npt.NDArray[np.intp], hits: list[Plain]
) -> None:
    parts, plan, query, table = context.parts, context.plan, candidates.query, candidates.table
    ordinals, fused, shares = table.ordinals[columns], candidates.fused, dict[LegName, Float32Array]()
    if "dense" in table.legs and not query.head:
        vectors = context.ask_leg("dense", partial(parts.backends.vectors, ordinals))
        if vectors is not None:
            shares["dense"] = parts.encoder.token_shares(query, plan.task, vectors)
    if "sparse" in table.legs:
        of_terms = context.ask_leg("sparse", partial(parts.backends.shares, query, ordinals))
        shares |= {} if of_terms is None else {"sparse": of_terms}
    words = query_words(plan.text, plan.added, query, parts.encoder)
    texts = [text_of(fields) for _, fields in parts.documents.fetch(ordinals, ["title", "text"])]
    explained = explanations(
        query, words, parts.encoder, fused.shares[:, columns], table.legs, shares, texts, context.require_time
    )
    boosts = candidates.ranking.boosts[:, columns].T.tolist()
    for row, (hit, explanation) in enumerate(zip(hits, explained, strict=True)):
        if fused.feedback is not None:
            explanation["fusion"]["feedback"] = float(fused.feedback[columns[row]])
        if boosts[row]:
            explanation["boosts"] = boosts[row]
        if plan.request.like is not None:
            explanation["note"] = f"The query is the document {plan.request.like}: its vector and its heaviest terms."
        if hit["id"] in candidates.pinned:
            explanation["note"] = "A rule puts this document first for this query."
        elif ordinals[row] in candidates.named:
            explanation["note"] = "The query is the name of this document, its id or title, which puts it first."
        hit["explanation"] = explanation


def _facets(context: SearchContext, ordinals: Ordinals | None, allowed: DocumentFilter | None = None) -> Plain:
    """Return the facets of documents (m,), or else of all `allowed`. InvalidRequestError for too many values."""
    plan, documents, facets = context.plan, context.parts.documents, dict[str, Any]()
    store, names = documents.store, plan.request.facets
    context.require_time("count the facets")
    with context.clock.measure("facets"), reading():
        counted = allowed if ordinals is None else store.of(ordinals)
        if names:
            try:
                counts = [store.counts(name, counted) for name in names]
            except TooManyValuesError as error:
                raise InvalidRequestError.at("facets", str(error)) from error
            values = [[{"value": value, "count": count} for value, count in pairs] for pairs in counts]
            facets["facets"] = dict(zip(names, values, strict=True))
        if plan.ranges:
            chosen = []
            for condition in (condition for ranges in plan.ranges.values() for _, condition in ranges):
                context.require_time("count the facets")
                chosen.append(store.where(condition))
            totals = iter(store.totals(chosen, counted))
            facets["facet_ranges"] = {
                name: [{**bounds, "count": next(totals)} for bounds, _ in ranges]
                for name, ranges in plan.ranges.items()
            }
    return facets


def matches(
    thresholds: MatchThresholds | None,
    text: str,
    table: CandidateTable,
    encoder: QueryEncoder,
    shares: Float32Array | None,
    largest: Float32Array | None,
) -> Levels | None:
    """Return the level of each candidate of a query, encoded from the tokens of `text` alone. None without thresholds
    or dense scores.

    Words count where the terms are words and the sparse leg was searched. If no candidate has one of the query, none is
    strong, those of a strong dense score are weak, and if the tokenizer of the tables knows no word of it either, all
    are none: letters typed at random have pieces that are near to something, too. Without `shares` (u, t) and the
    `largest` of each term (t,), none is strong.
    """
    if thresholds is None or "dense" not in table.legs:
        return None
    dense = table.of("dense")
    levels = (dense >= thresholds.weak).astype(np.int8)
    strong = np.flatnonzero(dense >= thresholds.strong)
    if encoder.vocabulary.language is None or "sparse" not in table.legs:
        levels[strong] = 2
    elif not np.any(table.of("sparse") > 0):
        words = [word for word in WORD.findall(text) if word.lower() not in STOP_WORDS]
        levels[:] = 0
        levels[strong] = int(bool(words) and 1 in encoder.tokenizer.query_ids_of(words)[1])  # one token is a word
    elif strong.size and shares is not None and largest is not None:
        most = largest.astype(np.float64)
        most[most <= 0] = most.max()
        had = np.einsum("mt,t->m", shares[strong], most) / max(float(most @ most), _TINY)
        levels[strong[dense[strong] * had >= _STRONG * thresholds.strong]] = 2
    levels[np.isnan(dense)] = -1
    return levels
