"""One search, from the query to the answer: encode, search the legs, fill in scores, fuse, rank, read the documents."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Final, NoReturn

import numpy as np

from lightretriever.artifacts.dense.index import products
from lightretriever.artifacts.documents.fields import NAMES, Order, name_of
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import TokenizerError
from lightretriever.artifacts.sparse.index import scores_of
from lightretriever.service import errors
from lightretriever.service.backends.base import (
    DocumentsGoneError,
    EncodedQuery,
    LegResults,
    Ordinals,
    ReadCandidates,
    ScoredDocuments,
    UnavailableError,
)
from lightretriever.service.execution.executor import Reason
from lightretriever.service.schemas import LegName, LinearFusion, Plain
from lightretriever.service.search import fusion
from lightretriever.service.search.answer import LEVELS, Candidates, build_answer, build_listing, matches
from lightretriever.service.search.documents import reading
from lightretriever.service.search.encoder import no_terms
from lightretriever.service.search.explain import check_explained
from lightretriever.service.search.filters import all_of
from lightretriever.service.search.fusion import CandidateTable, Fused
from lightretriever.service.search.ranking import RERANK, Ranked, Reranker, grouped, ranked
from lightretriever.service.search.request import RERANK_UNTIL, RESCORE_UNTIL, SEARCH_UNTIL, SearchContext
from lightretriever.service.search.rules import rewrite
from lightretriever.service.search.words import exclude, read_typed

_log = logging.getLogger(__name__)
_ATTEMPTS: Final = 10  # to search while documents are deleted


def search(context: SearchContext) -> Plain:
    """Answer a search as `SearchResponse`, in plain dictionaries. UnsearchableError, DocumentNotFoundError,
    InvalidRequestError for too many tokens to explain, and DeadlineError, SearchFailedError, NotReadyError for no
    answer."""
    parts, plan = context.parts, context.plan
    if perf_counter() >= context.deadline(SEARCH_UNTIL):
        late = f"The search had not begun after {context.clock.total() * 1e3:.0f} of its {plan.deadline_ms:g} ms."
        raise errors.DeadlineError(f"{late} Allow more time, or try again later.")
    spellings = parts.backends.spellings
    if spellings is not None and (plan.excluded or plan.request.spelling or plan.request.prefix):
        with context.clock.measure("spelling"), reading():
            plan = exclude(plan, spellings) if plan.excluded else plan
            if plan.text and (plan.request.spelling or plan.request.prefix):
                plan = read_typed(plan, spellings, parts.encoder)
        context.plan = plan
    if parts.rules is not None and not plan.lists:
        context.plan = rewrite(context.plan, parts.rules.value)
    if context.plan.added:  # without those that no leg knows, as an error must not name what nobody sent
        context.plan = replace(context.plan, added=[pair for pair in context.plan.added if _is_known(context, pair[0])])
    for _ in range(_ATTEMPTS):
        try:
            return _list(context) if plan.lists else _search(context)
        except DocumentsGoneError:  # between two trips to a cluster
            context.missing.clear()
            context.unscored.clear()
    raise errors.NotReadyError("Documents that the search found are deleted all the time. Try again later.")


def _search(context: SearchContext) -> Plain:
    parts, plan, clock, allowed = context.parts, context.plan, context.clock, None
    query, legs = _encoded(context)
    if plan.request.explain:
        check_explained(plan.request, query, plan.max_explained)
    if plan.condition is not None:
        with clock.measure("filter"):
            allowed = parts.documents.where(plan.condition)
    if plan.request.query is not None and plan.request.sort is None:
        query = replace(query, named=named(plan.request.query))
    results = parts.backends.search(query, legs, plan.candidates, allowed, context.deadline(SEARCH_UNTIL))
    query, hits = results.query, _hits(context, results, legs)
    pinned = _pinned(context) if plan.pinned and plan.request.sort is None else {}
    with parts.backends.within(context.deadline()):
        started = perf_counter()
        first = [*pinned.values(), *results.named.tolist()]
        table = fusion.align([*hits.values()], [*hits], first)
        started = clock.add("fuse", started)
        read = results.read  # not if a leg was late, or others come first
        if read is not None and not np.array_equal(read.documents, table.ordinals):
            read = None
        shares = None if len(hits) < 2 else _filled(context, table, query, read)
        started = perf_counter()
        largest = None if shares is None else shares.max(axis=0, initial=0.0)
        fused = _fused(context, table, query, read, largest)
        unjudged = _unjudged(context, query)
        thresholds = plan.thresholds if unjudged is None else None
        levels = matches(thresholds, plan.text, table, parts.encoder, shares, largest)
        if levels is None:
            unjudged = unjudged or "The dense leg did not answer."
        else:
            levels[np.searchsorted(table.ordinals, results.named)] = LEVELS.index("strong")
        clock.add("fuse", started)
        columns = list[int]()
        if first:
            fused, columns = _with_first(context, query, table, fused, pinned.values(), results.named)
        ranking = _ranked(context, table, fused, columns)
        return build_answer(
            context, Candidates(query, table, fused, levels, unjudged, ranking, [*pinned], results.named)
        )


def _encoded(context: SearchContext) -> tuple[EncodedQuery, list[LegName]]:
    plan, like = context.plan, context.plan.request.like
    dense, sparse = "dense" in plan.legs, "sparse" in plan.legs or plan.request.snippets is not None
    if like is not None:
        query = _of_document(context, like, dense=dense, sparse=sparse)
    else:
        query = context.parts.encoder.encode(
            plan.text,
            plan.task,
            context.clock,
            dense=dense,
            sparse=sparse,
            added=plan.added,
            split=plan.request.explain or len(plan.legs) < 2 or not context.parts.backends.splits_text,
        )
    legs: list[LegName] = ["dense"] if query.dense is not None and dense else []
    if "sparse" in plan.legs and (query.terms or query.text):
        legs.append("sparse")
    if legs:
        return query, legs
    if like is None:
        raise no_terms("query", plan.text)
    reason = "the document has no terms, so nothing can be searched for: search by a text"
    raise errors.UnsearchableError.at("like", reason, like)


def _of_document(context: SearchContext, document_id: str, *, dense: bool, sparse: bool) -> EncodedQuery:
    """Return the query for documents like another. DocumentNotFoundError if no document has this id."""
    backends, store = context.parts.backends, context.parts.documents.store
    with context.clock.measure("encode"), backends.within(context.deadline(SEARCH_UNTIL)), reading():
        ordinal = store.ordinal(document_id)
        if ordinal is None:
            raise errors.DocumentNotFoundError.at("like", "no document has this id", document_id)
        terms, impacts = store.terms(ordinal) if sparse else ([], np.empty(0, np.int32))
        vector = backends.vectors(np.array([ordinal]))[0] if dense else None
        return context.parts.encoder.of_document(terms, impacts, vector)


def _is_known(context: SearchContext, text: str) -> bool:
    encoder, legs = context.parts.encoder, context.plan.legs
    try:
        return bool(
            ("dense" in legs and encoder.tokenizer.query_ids(text))
            or ("sparse" in legs and encoder.vocabulary.terms_of([text])[0])
        )
    except TokenizerError:
        return False


def _hits(context: SearchContext, results: LegResults, legs: Sequence[LegName]) -> dict[LegName, ScoredDocuments]:
    """Return the hits of the legs that know something of the query. An error as in `_give_up` if too few answered."""
    hits: dict[LegName, ScoredDocuments] = {}
    for name in legs:
        outcome = results.outcomes[name]
        context.clock.handed_s += outcome.handed_s
        if outcome.value is not None:
            hits[name] = outcome.value
            context.clock.add(name, outcome.started, outcome.ended)
        elif outcome.reason is not None:
            context.missing[name] = outcome.reason
            if outcome.error is not None and outcome.reason == "failed":
                context.log_failure(name, outcome.error)
    if not hits or (context.missing and not context.plan.request.allow_partial):
        raised = [outcome.error for outcome in results.outcomes.values()]
        _give_up(context.missing, raised, context.plan.deadline_ms * SEARCH_UNTIL)
    if "sparse" in hits and not results.query.terms:  # the search split a text without words
        del hits["sparse"]
    return hits


def _pinned(context: SearchContext) -> dict[str, int]:
    """Return the ordinals of the documents that rules put first, by id in their order: those that pass the filter."""
    plan, documents = context.plan, context.parts.documents
    wanted = ("ids", str(len(plan.pinned)), *plan.pinned)
    context.require_time("find the pinned documents")
    with context.clock.measure("filter"), context.parts.backends.within(context.deadline(RESCORE_UNTIL)):
        allowed = documents.where(all_of(plan.condition, wanted) or wanted)
        with reading():
            ordinals = documents.store.listed(allowed, None, 0, len(plan.pinned))
        read = [document_id for document_id, _ in documents.fetch(ordinals, [])]
    by_id = dict(zip(read, ordinals.tolist(), strict=True))
    return {document_id: by_id[document_id] for document_id in plan.pinned if document_id in by_id}


def named(query: str) -> list[tuple[str, ...]]:
    """Return the conditions of the documents that a query may be a name of: of those whose id it is, as typed or in
    lower case, then of those whose title it is, or the head of it. A query without a letter is none, as numbers are the
    ids of many corpora and say something else in a query."""
    name, word = name_of(query), query.strip()
    if not name:
        return []
    ids = dict.fromkeys([word, word.lower()]) if " " not in name else ()
    of_ids = [("ids", str(len(ids)), *ids)] if ids else []
    return [*of_ids, ("keyword", NAMES, "1", name)]


def _with_first(
    context: SearchContext,
    query: EncodedQuery,
    table: CandidateTable,
    fused: Fused,
    pinned: Iterable[int],
    named: Ordinals,
) -> tuple[Fused, list[int]]:
    """Return a ranking that has the documents `pinned`, and those whose name a query is, and their columns in the order
    in which they come first: `named` ones are by whether the query is their id, then by score. Those that no leg
    proposed are last in the ranking, with the score 0 where theirs is unknown."""
    scores, of_named = np.nan_to_num(fused.scores), np.searchsorted(table.ordinals, named).tolist()
    if len(of_named) > 1:
        with reading():
            ids = [document_id for kind, _, *names in query.named if kind == "ids" for document_id in names]
            of_ids = {context.parts.documents.store.ordinal(document_id) for document_id in ids}
        of_named.sort(key=lambda column: (int(table.ordinals[column]) not in of_ids, -scores[column]))
    columns = list(dict.fromkeys([*np.searchsorted(table.ordinals, [*pinned]).tolist(), *of_named]))
    order = np.concatenate([fused.order, np.setdiff1d(np.array(columns, np.intp), fused.order)])
    return replace(fused, order=order, shares=np.nan_to_num(fused.shares), scores=scores), columns


def _filled(
    context: SearchContext, table: CandidateTable, query: EncodedQuery, read: ReadCandidates | None
) -> Float32Array | None:
    """Fill in each leg's true score of the documents that only the other leg proposed, and return each term's share
    (u, t) of the sparse scores of all candidates. A leg that fails or is late leaves its scores unknown, and `unscored`
    names it."""
    backends, shares, started = context.parts.backends, None, perf_counter()
    if read is not None:
        table.of("dense")[:], shares = read.dense, read.shares
    else:
        shares = context.ask_leg("sparse", partial(backends.shares, query, table.ordinals), RESCORE_UNTIL)
        missing = np.isnan(dense := table.of("dense"))
        if missing.any():
            call = partial(backends.scores, query.vector, table.ordinals[missing])
            if (scores := context.ask_leg("dense", call, RESCORE_UNTIL)) is not None:
                dense[missing] = scores
    if shares is not None:
        table.of("sparse")[:] = scores_of(shares)
    context.clock.add("rescore", started)
    return shares


def _fused(
    context: SearchContext,
    table: CandidateTable,
    query: EncodedQuery,
    read: ReadCandidates | None,
    largest: Float32Array | None,
) -> Fused:
    """Fuse the legs, each of the weight of the request, or by its share of what they know of the query; and fuse again
    with the dense scores for the query's vector moved towards that of the first document, unless this has none of the
    query's words. Both only where all scores are known."""
    plan, asked = context.plan, context.plan.request.fusion
    weights = [*map(plan.legs.__getitem__, table.legs)]
    if plan.request.mode != "hybrid":
        return Fused(np.argsort(table.ranks[0]), table.scores, table.scores[0])
    if not isinstance(asked, LinearFusion):
        return fusion.fuse_rrf(table, weights, asked.rank_constant)
    if largest is None or query.dense is None or not table.ordinals.size or np.isnan(table.scores).any():
        return fusion.fuse_linear(table, weights, plan.normalization)
    (dense, sparse), background = table.scores, context.parts.background  # both legs, in this order
    if plan.normalization == "evidence" and background is not None:
        of_dense, of_sparse = fusion.evidence(query.dense, background, dense, sparse, largest)
        weighted = weights[0] * of_dense, weights[1] * of_sparse
        if (total := sum(weighted)) > 0:
            weights = [weighted[0] / total, weighted[1] / total]
    fused = fusion.fuse_linear(table, weights, plan.normalization)
    if not plan.feedback or not fused.order.size or not (score := float(sparse[fused.order[0]])) > 0:
        return fused
    first, weight = fused.order[0], plan.feedback * fusion.word_share(score, largest)
    if read is not None:
        scores = products(read.vectors, fusion.moved_query(query.dense, read.vectors[first], weight))
    elif (again := context.ask_leg("dense", partial(_scores_again, context, query, table, first, weight))) is None:
        return fused
    else:
        scores = again
    return fusion.fuse_again(table, fused, weights, plan.normalization, 0, scores)


def _scores_again(
    context: SearchContext, query: EncodedQuery, table: CandidateTable, first: int, weight: float
) -> Float32Array:
    """Return the dense scores of all candidates for a query whose vector moves towards that of the `first` one."""
    backends = context.parts.backends
    (vector,) = backends.vectors(table.ordinals[[first]])
    return backends.scores(fusion.moved_query(query.vector, vector, weight), table.ordinals)


def _unjudged(context: SearchContext, query: EncodedQuery) -> str | None:
    """Return why the hits of a query are not judged; None if they are. Thresholds are those of the dense scores of sums
    over the query's own tokens."""
    plan = context.plan
    if "dense" not in plan.legs:
        return "Matches are judged by the dense score, and the dense leg is not searched."
    if plan.request.like is not None:
        return "Documents like another are not judged."
    if "rules" in plan.facts and plan.facts["rules"]["synonyms"]:
        return "Rules added words to the query."
    if query.head:
        return "A model read this query: the thresholds are for sums of tokens."
    if plan.thresholds is None:
        return f"The bundle has no thresholds of a match for the task {plan.task!r}."
    return None if query.dense is not None else "The query has no tokens of the dense leg."


def _ranked(context: SearchContext, table: CandidateTable, fused: Fused, pinned: list[int]) -> Ranked:
    """Order the candidates by what else the request asks for, but those of the columns `pinned` first."""
    plan, parts = context.plan, context.parts
    request = plan.request
    if not (request.boosts or request.sort or request.group_by or plan.rerank or pinned):
        return Ranked(fused.order.tolist(), fused.scores, np.empty((0, fused.scores.size)))
    context.require_time("order the candidates")
    ordinals = table.ordinals[fused.order]
    values: dict[str, list[Any]] = {}
    with context.clock.measure("rank"):
        names = [boost.field for boost in request.boosts]
        names += [] if request.sort is None else [request.sort.field]
        names += [] if request.group_by is None else [request.group_by]
        if names:
            read = [fields for _, fields in parts.documents.fetch(ordinals, names)]
            values = {name: [fields.get(name) for fields in read] for name in names}
        ranking = ranked(request, fused, values, plan.kinds)
        if plan.rerank and parts.reranker is not None:
            ranking = replace(ranking, reranked=_relevance(context, parts.reranker, table, ranking.order))
        return grouped(request, ranking, values, fused.order, pinned)


def _relevance(context: SearchContext, reranker: Reranker, table: CandidateTable, order: list[int]) -> dict[int, float]:
    plan, deadline = context.plan, context.deadline(RERANK_UNTIL)
    top = order[: reranker.top]
    if not top:
        return {}
    documents = context.parts.documents.fetch(table.ordinals[top], ["title", "text"])
    call = partial(reranker.scores, plan.text, [fields for _, fields in documents], deadline)
    outcome = context.parts.executor.begin(RERANK, call, deadline)()
    if outcome.value is not None:
        context.clock.add(RERANK, outcome.started, outcome.ended)
        return dict(zip(top, outcome.value, strict=True))
    context.missing[RERANK] = outcome.reason or "failed"
    if outcome.error is not None:
        _log.error("reranker failed", exc_info=outcome.error)
    if not plan.request.allow_partial:
        if context.missing[RERANK] == "failed":
            raise errors.SearchFailedError("The reranking model failed; the log says why. Allow partial answers.")
        raise errors.DeadlineError("The reranking model was too late. Allow partial answers, or more time.")
    return {}


def _list(context: SearchContext) -> Plain:
    """List all documents that match the filter, in the order of a declared field or of writing, without scores."""
    parts, plan, allowed, order = context.parts, context.plan, None, None
    request, store = plan.request, parts.documents.store
    if request.sort is not None:
        order = Order(request.sort.field, plan.kinds[request.sort.field], request.sort.order == "desc")
    with parts.backends.within(context.deadline()):
        if plan.condition is not None:
            with context.clock.measure("filter"):
                allowed = parts.documents.where(plan.condition)
        context.require_time("order the documents")
        with context.clock.measure("rank"), reading():
            seconds = context.deadline(RESCORE_UNTIL) - perf_counter()
            ordinals = store.listed(allowed, order, request.offset, request.k, seconds)
            (total,) = store.totals([allowed])
        return build_listing(context, ordinals, total, allowed)


def _give_up(missing: Mapping[Any, Reason], raised: Iterable[BaseException | None], share_ms: float) -> NoReturn:
    """Raise the error for legs that are missing; `raised` are their errors, `share_ms` the time that they had."""
    if any(isinstance(error, UnavailableError) for error in raised):
        raise errors.NotReadyError(errors.UNAVAILABLE)
    reason = min(missing.values(), key=("failed", "stuck", "late").index)
    legs = " and ".join(sorted(name for name, why in missing.items() if why == reason))
    if reason == "failed":
        raise errors.SearchFailedError(f"The leg {legs} failed. The reason is in the log; try again later.")
    if reason == "stuck":
        raise errors.DeadlineError(f"The leg {legs} has no free thread: calls that don't end hold all. Try later.")
    late = f"No answer from the leg {legs} within {share_ms:g} ms, its share of the deadline."
    raise errors.DeadlineError(f"{late} Allow more time, or fewer candidates.")
