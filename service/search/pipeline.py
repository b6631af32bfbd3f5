"""One search, from the query to the answer: encode, search the legs, fuse, rank, read the documents."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Final, NoReturn

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dense.index import products
from lightretriever.artifacts.documents.bounds import MAX_ID_BYTES
from lightretriever.artifacts.errors import TokenizerError
from lightretriever.artifacts.sparse.arguments import scores_of
from lightretriever.service.backends.base import (
    DocumentsGoneError,
    EncodedQuery,
    LegResults,
    Ordinals,
    ScoredDocuments,
    UnavailableError,
)
from lightretriever.service.errors import (
    UNAVAILABLE,
    DeadlineError,
    DocumentNotFoundError,
    FieldError,
    NotReadyError,
    SearchFailedError,
    UnsearchableError,
    shortened,
)
from lightretriever.service.execution.executor import Reason
from lightretriever.service.schemas import LegName, LinearFusion, Plain
from lightretriever.service.search.answer import Candidates, SearchedQuery, build_answer, build_listing
from lightretriever.service.search.context import RERANK_UNTIL, RESCORE_UNTIL, SEARCH_UNTIL, SearchContext
from lightretriever.service.search.documents import reading
from lightretriever.service.search.encoder import require_terms
from lightretriever.service.search.explain import check_explained
from lightretriever.service.search.filters import all_of
from lightretriever.service.search.fusion import (
    CandidateTable,
    Fused,
    align,
    evidence,
    fuse_again,
    fuse_linear,
    fuse_rrf,
    moved_query,
    with_documents,
    word_share,
)
from lightretriever.service.search.matching import LEVELS, Levels, matches
from lightretriever.service.search.ranking import RERANK, Ranked, Reranker, grouped, ranked
from lightretriever.service.search.rules import NO_RULES, AppliedRules
from lightretriever.service.search.words import Typed, read_typed

__all__ = ["named_ids", "search"]

_log = logging.getLogger(__name__)
_ATTEMPTS: Final = 10  # to search while documents are deleted

Shares = npt.NDArray[np.float32]


def search(context: SearchContext) -> Plain:
    """Answer a search as `SearchResponse`, in plain dictionaries.

    UnsearchableError if the query can't be encoded, DocumentNotFoundError if it is no document, InvalidRequestError if
    it has too many tokens to be explained, DeadlineError, SearchFailedError or NotReadyError if there is no answer.
    """
    if perf_counter() >= context.until(SEARCH_UNTIL):
        raise DeadlineError(
            f"The search had not begun {context.clock.total() * 1e3:.0f} ms after the request came, too late for its "
            f"deadline of {context.plan.deadline_ms:g} ms. Allow more time, or try again later."
        )
    for _ in range(_ATTEMPTS):
        try:
            return _list(context) if context.plan.request.lists else _search(context)
        except DocumentsGoneError:  # between two trips to a cluster
            context.missing.clear()
            context.unscored.clear()
    raise NotReadyError("Documents that the search found are deleted all the time. Try again later.")


def _search(context: SearchContext) -> Plain:
    parts, plan, clock = context.parts, context.plan, context.clock
    typed = _typed(context)
    rules = NO_RULES if parts.rules is None else parts.rules.apply(typed.searched)
    extra_terms = _extra_terms(context, typed, rules)
    query, legs = _encoded(context, typed.searched, extra_terms)
    if plan.request.explain:
        check_explained(plan.request, query, plan.max_explained)
    unjudged = _unjudged(context, query, rules)
    hits, results = _hits(context, query, legs, _condition(context, rules))
    query, legs, pinned = results.query, list(hits), _pinned(context, rules, typed.query)
    with parts.backends.within(context.until()):
        started = perf_counter()
        table = with_documents(align(list(hits.values())), list(pinned.values()))
        if results.documents is not None and not np.array_equal(results.documents, table.ordinals):
            results = LegResults(results.outcomes, results.query)  # a leg was late, or rules put documents first
        started = clock.add("fuse", started)
        shares = _score(context, results, table, legs)
        started = perf_counter()
        largest = None if shares is None else shares.max(axis=0, initial=0.0)
        weights = _weights(context, query, table, legs, largest)
        fused = _fused(context, table, weights)
        fused = _with_feedback(context, fused, results, table, legs, largest, weights)
        thresholds = plan.thresholds if unjudged is None else None
        levels = matches(thresholds, typed.searched, table, legs, parts.encoder, shares, largest)
        clock.add("fuse", started)
        columns = np.searchsorted(table.ordinals, list(pinned.values())).tolist() if pinned else []
        if pinned:
            fused = _with_columns(fused, columns)
        fused, unmatched = _matching(context, fused, levels, legs, columns)
        ranking = _ranked(context, typed.searched, table, fused, columns)
        if levels is None and unjudged is None:
            unjudged = "The dense leg did not answer."
        candidates = Candidates(legs, table, fused, levels, unjudged, unmatched, ranking, list(pinned))
        return build_answer(context, SearchedQuery(typed, query, extra_terms, rules), candidates)


def _typed(context: SearchContext) -> Typed:
    """Return the text to search for: the query, its words corrected and completed where the request asks for that."""
    request, spellings = context.plan.request, context.parts.backends.spellings
    query = request.query or ""
    if spellings is None or not (request.spelling or request.prefix):
        return Typed(query, query)
    with context.clock.measure("spelling"), reading():
        return read_typed(query, request, spellings, context.parts.encoder, context.plan.task)


def _encoded(
    context: SearchContext, text: str, extra_terms: Sequence[tuple[str, float]]
) -> tuple[EncodedQuery, list[LegName]]:
    """Encode the query, and return the legs that have something to search for."""
    plan, like = context.plan, context.plan.request.like
    dense, sparse = "dense" in plan.legs, "sparse" in plan.legs or plan.request.snippets is not None
    if like is not None:
        query = _of_document(context, like, dense=dense, sparse=sparse)
    else:
        query = context.parts.encoder.encode(
            text,
            plan.task,
            context.clock,
            dense=dense,
            sparse=sparse,
            extra_terms=extra_terms,
            split=plan.request.explain or len(plan.legs) < 2 or not context.parts.backends.splits_text,
        )
    known = {"dense": query.dense is not None, "sparse": bool(query.terms or query.text)}
    legs = [name for name in plan.legs if known[name]]
    if like is None:
        require_terms(legs, "query", text)
    elif not legs:
        reason = "the document has no terms, so nothing can be searched for: search by a text"
        raise UnsearchableError.of(FieldError("like", reason, shortened(like)))
    return query, legs


def _of_document(context: SearchContext, document_id: str, *, dense: bool, sparse: bool) -> EncodedQuery:
    """Return the query for documents like another, without its vector unless `dense`, without terms unless `sparse`.
    DocumentNotFoundError if no document has this id."""
    backends, store = context.parts.backends, context.parts.documents.store
    with context.clock.measure("encode"), backends.within(context.until(SEARCH_UNTIL)), reading():
        ordinal = store.ordinal(document_id)
        if ordinal is None:
            raise DocumentNotFoundError.of(FieldError("like", "no document has this id", shortened(document_id)))
        terms, impacts = store.terms(ordinal) if sparse else ([], np.empty(0, np.int32))
        vector = backends.vectors(np.array([ordinal]))[0] if dense else None
        return context.parts.encoder.of_document(terms, impacts, vector)


def _extra_terms(context: SearchContext, typed: Typed, rules: AppliedRules) -> list[tuple[str, float]]:
    """Return the texts that count beside the query, with their weights: the request's, the completions, and those of
    rules, of which a text that no leg knows is left out, as an error must not name what nobody sent."""
    given = [(term.text, term.weight) for term in context.plan.request.terms]
    return given + [one for one in (*typed.words, *rules.synonyms) if _is_known(context, one[0])]


def _is_known(context: SearchContext, text: str) -> bool:
    """True if a leg to be searched has something to search for in a text."""
    encoder, legs = context.parts.encoder, context.plan.legs
    try:
        return bool(
            ("dense" in legs and encoder.tokenizer.query_ids(text))
            or ("sparse" in legs and encoder.vocabulary.terms_of([text])[0])
        )
    except TokenizerError:
        return False


def _unjudged(context: SearchContext, query: EncodedQuery, rules: AppliedRules) -> str | None:
    """Return why the hits of a query are not judged; None if they are. Thresholds are those of the dense scores of sums
    over the query's own tokens."""
    plan = context.plan
    if "dense" not in plan.legs:
        return "Matches are judged by the dense score, and the dense leg is not searched."
    if plan.request.like is not None:
        return "Documents like another are not judged."
    if plan.request.terms:
        return "A search with terms is not judged."
    if rules.synonyms:
        return "Rules added words to the query."
    if query.head:
        return "A model read this query: the thresholds are for sums of tokens."
    if plan.thresholds is None:
        return f"The bundle has no thresholds of a match for the task {plan.task!r}."
    return None if query.dense is not None else "The query has no tokens of the dense leg."


def _condition(context: SearchContext, rules: AppliedRules) -> tuple[str, ...] | None:
    """Return the filter of the request, without the documents that rules hide."""
    hidden = ("not", "ids", str(len(rules.hidden)), *rules.hidden) if rules.hidden else None
    return all_of(context.plan.condition, hidden)


def _hits(
    context: SearchContext, query: EncodedQuery, legs: Sequence[LegName], condition: tuple[str, ...] | None
) -> tuple[dict[LegName, ScoredDocuments], LegResults]:
    """Search the legs, and return the hits of those that know something of the query. DeadlineError or
    SearchFailedError if too few answer."""
    parts, plan, clock, allowed = context.parts, context.plan, context.clock, None
    if condition is not None:
        with clock.measure("filter"):
            allowed = parts.documents.where(condition)
    results = parts.backends.search(query, legs, plan.candidates, allowed, context.until(SEARCH_UNTIL))
    outcomes = results.outcomes
    hits: dict[LegName, ScoredDocuments] = {}
    for name in legs:
        outcome = outcomes[name]
        clock.handed_s += outcome.handed_s
        if outcome.reason is None:
            hits[name] = outcome.get()
            clock.add(name, outcome.started, outcome.ended)
        else:
            context.missing[name] = outcome.reason
            if outcome.error is not None and outcome.reason == "failed":
                context.log_failure(name, outcome.error)
    partial_answer = plan.request.allow_partial and plan.request.min_matched is None
    if not hits or (context.missing and not partial_answer):
        errors = [outcome.error for outcome in outcomes.values()]
        _give_up(context.missing, errors, plan.deadline_ms * SEARCH_UNTIL)
    if "sparse" in hits and not results.query.terms:  # the search split a text without words
        del hits["sparse"]
    return hits, results


def _pinned(context: SearchContext, rules: AppliedRules, query: str) -> dict[str, int]:
    """Return the ordinals of the documents that rules put first, and of that whose id the query is, by id in their
    order: those that pass the filter. None with `sort`, whose field alone gives the order."""
    ids = [*dict.fromkeys([*rules.pinned, *named_ids(query)])]
    if not ids or context.plan.request.sort is not None:
        return {}
    documents, wanted = context.parts.documents, ("ids", str(len(ids)), *ids)
    context.require_time("find the pinned documents")
    with context.clock.measure("filter"), context.parts.backends.within(context.until(RESCORE_UNTIL)):
        allowed = documents.where(all_of(_condition(context, rules), wanted) or wanted)
        with reading():
            ordinals = documents.store.listed(allowed, None, 0, len(ids))
        read = [document_id for document_id, _ in documents.fetch(ordinals, [])]
    by_id = dict(zip(read, ordinals.tolist(), strict=True))
    return {document_id: by_id[document_id] for document_id in ids if document_id in by_id}


def named_ids(query: str) -> list[str]:
    """Return the ids that a query may be: one word with a letter, as typed and in lower case. Numbers are none, as they
    are the ids of many corpora and say something else in a query."""
    word = query.strip()
    is_name = len(word.split()) == 1 and any(map(str.isalpha, word)) and len(word.encode()) <= MAX_ID_BYTES
    return [*dict.fromkeys([word, word.lower()])] if is_name else []


def _score(
    context: SearchContext, results: LegResults, table: CandidateTable, legs: Sequence[LegName]
) -> Shares | None:
    """Fill in each leg's true score of the documents that only other legs proposed, and return each term's share (u, t)
    of the sparse scores of all candidates; None with one leg alone. A leg that fails or is late leaves its scores
    unknown, and `unscored` names it."""
    if len(legs) < 2:
        return None
    query, shares, started = results.query, results.shares, perf_counter()
    if shares is None:
        shares = _shares_or_none(context, query, table.ordinals)
    sparse, dense = legs.index("sparse"), legs.index("dense")
    if shares is not None:
        table.scores[sparse] = scores_of(shares)
    if results.dense is not None:
        table.scores[dense] = results.dense
    elif (missing := table.missing(dense)).size:
        outcome = context.parts.backends.score(query, {"dense": missing}, context.until(RESCORE_UNTIL))["dense"]
        if outcome.reason is None:
            table.fill(dense, outcome.get())
        elif isinstance(outcome.error, DocumentsGoneError):
            raise outcome.error
        else:
            context.unscored["dense"] = outcome.reason
            if outcome.error is not None and outcome.reason == "failed":
                context.log_failure("dense", outcome.error)
    context.clock.add("rescore", started)
    return shares


def _shares_or_none(context: SearchContext, query: EncodedQuery, ordinals: Ordinals) -> Shares | None:
    if perf_counter() >= context.until(RESCORE_UNTIL):
        context.unscored["sparse"] = "late"
        return None
    try:
        return context.parts.backends.legs["sparse"].shares(query, ordinals)
    except DocumentsGoneError:
        raise
    except Exception as error:
        if context.plan.request.min_matched is not None:
            raise SearchFailedError("The leg sparse failed. The reason is in the log; try again later.") from error
        context.unscored["sparse"] = "late" if isinstance(error, TimeoutError) else "failed"
        context.log_failure("sparse", error)
        return None


def _weights(
    context: SearchContext,
    query: EncodedQuery,
    table: CandidateTable,
    legs: Sequence[LegName],
    largest: npt.NDArray[np.float32] | None,
) -> list[float]:
    """Return the weight of each leg: that of the request, or their shares of what the legs know of the query. The
    request's where neither knows anything, and where a score is not known."""
    weights, background = [context.plan.legs[name] for name in legs], context.parts.background
    linear = isinstance(context.plan.request.fusion, LinearFusion) and context.plan.normalization == "evidence"
    if not linear or background is None or largest is None or query.dense is None:
        return weights
    dense, sparse = table.scores[legs.index("dense")], table.scores[legs.index("sparse")]
    if not dense.size or np.isnan(dense).any():
        return weights
    known = dict(zip(("dense", "sparse"), evidence(query.dense, background, dense, sparse, largest), strict=True))
    weighed = [weight * known[name] for name, weight in zip(legs, weights, strict=True)]
    total = sum(weighed)
    return [weight / total for weight in weighed] if total > 0 else weights


def _fused(context: SearchContext, table: CandidateTable, weights: Sequence[float]) -> Fused:
    fusion = context.plan.request.fusion
    if context.plan.request.mode != "hybrid":
        return Fused(np.argsort(table.ranks[0]), table.scores, table.scores[0])
    if isinstance(fusion, LinearFusion):
        return fuse_linear(table, weights, context.plan.normalization)
    return fuse_rrf(table, weights, fusion.rank_constant)


def _with_feedback(
    context: SearchContext,
    fused: Fused,
    results: LegResults,
    table: CandidateTable,
    legs: Sequence[LegName],
    largest: npt.NDArray[np.float32] | None,
    weights: Sequence[float],
) -> Fused:
    """Fuse again, with the dense leg's scores for the query's vector moved towards that of the first document. Without
    feedback where this document has none of the query's words, and where a backend fails or is late."""
    query = results.query
    if not context.plan.feedback or largest is None or query.dense is None or not fused.order.size:
        return fused
    first, dense = fused.order[0], legs.index("dense")
    score = float(table.scores[legs.index("sparse"), first])
    if score <= 0 or np.isnan(table.scores[dense]).any():
        return fused
    weight = context.plan.feedback * word_share(score, largest)
    try:
        if results.vectors is not None:
            scores = products(results.vectors, moved_query(query.dense, results.vectors[first], weight))
        else:
            (vector,) = context.parts.backends.vectors(table.ordinals[[first]])
            moved = replace(query, dense=moved_query(query.dense, vector, weight))
            scores = context.parts.backends.legs["dense"].scores(moved, table.ordinals)
    except DocumentsGoneError:
        raise
    except Exception as error:
        context.unscored["dense"] = "late" if isinstance(error, TimeoutError) else "failed"
        context.log_failure("dense", error)
        return fused
    return fuse_again(table, fused, weights, context.plan.normalization, dense, scores)


def _with_columns(fused: Fused, columns: list[int]) -> Fused:
    """Return a ranking that has these columns, too: last, unless they are in it, and with the score 0 where theirs is
    unknown."""
    missing = np.setdiff1d(np.array(columns, np.intp), fused.order)
    order = np.concatenate([fused.order, missing])
    return replace(fused, order=order, shares=np.nan_to_num(fused.shares), scores=np.nan_to_num(fused.scores))


def _matching(
    context: SearchContext, fused: Fused, levels: Levels | None, legs: Sequence[LegName], pinned: list[int]
) -> tuple[Fused, int | None]:
    """Leave out of a ranking what matches less well than the request asks for, but the columns `pinned`, and return how
    many these are."""
    least = context.plan.request.min_matched
    if least is None or (levels is None and "dense" in legs):  # None for a head query, and a rule's synonyms
        return fused, None
    kept = np.isin(fused.order, pinned)
    if levels is not None:
        kept |= levels[fused.order] >= LEVELS.index(least)
    return replace(fused, order=fused.order[kept]), fused.order.size - int(kept.sum())


def _ranked(context: SearchContext, text: str, table: CandidateTable, fused: Fused, pinned: list[int]) -> Ranked:
    """Order the candidates by what else the request asks for, but those of the columns `pinned` first."""
    plan, parts = context.plan, context.parts
    if not plan.ordered_fields and not plan.request.diversity and not plan.rerank and not pinned:
        return Ranked(fused.order.tolist(), fused.scores, np.empty((0, fused.scores.size)))
    context.require_time("order the candidates")
    ordinals = table.ordinals[fused.order]
    values: dict[str, list[Any]] = {}
    vectors = None
    with context.clock.measure("rank"):
        if names := plan.ordered_fields:
            read = [fields for _, fields in parts.documents.fetch(ordinals, names)]
            values = {name: [fields.get(name) for fields in read] for name in names}
        if plan.request.diversity and ordinals.size:
            with reading():
                vectors = parts.backends.vectors(ordinals)
        ranking = ranked(plan.request, fused, values, plan.kinds, vectors, context.require_time)
        if plan.rerank and parts.reranker is not None:
            ranking = replace(ranking, reranked=_relevance(context, parts.reranker, text, table, ranking.order))
        return grouped(plan.request, ranking, values, fused.order, pinned)


def _relevance(
    context: SearchContext, reranker: Reranker, text: str, table: CandidateTable, order: list[int]
) -> dict[int, float]:
    """Return the reranking model's scores of the first columns; none if it fails or is late."""
    plan, until = context.plan, context.until(RERANK_UNTIL)
    top = order[: reranker.top]
    if not top:
        return {}
    documents = context.parts.documents.fetch(table.ordinals[top], ["title", "text"])
    call = partial(reranker.scores, text, [fields for _, fields in documents], until)
    outcome = context.parts.executor.gather({RERANK: call}, until)[RERANK]
    if outcome.reason is None:
        context.clock.add(RERANK, outcome.started, outcome.ended)
        return dict(zip(top, outcome.get(), strict=True))
    context.missing[RERANK] = "late" if isinstance(outcome.error, TimeoutError) else outcome.reason
    if outcome.error is not None:
        _log.error("reranker failed", exc_info=outcome.error)
    if not plan.request.allow_partial:
        if context.missing[RERANK] == "failed":
            raise SearchFailedError("The reranking model failed; the log says why. Allow partial answers.")
        raise DeadlineError("The reranking model was too late. Allow partial answers, or more time.")
    return {}


def _list(context: SearchContext) -> Plain:
    """List all documents that match the filter, in the order of a declared field or of writing. No leg is searched, so
    hits have no scores."""
    parts, plan, allowed = context.parts, context.plan, None
    request, store = plan.request, parts.documents.store
    with parts.backends.within(context.until()):
        if plan.condition is not None:
            with context.clock.measure("filter"):
                allowed = parts.documents.where(plan.condition)
        context.require_time("order the documents")
        with context.clock.measure("rank"), reading():
            seconds = context.until(RESCORE_UNTIL) - perf_counter()
            ordinals = store.listed(allowed, plan.order, request.offset, request.k, seconds)
            (total,) = store.totals([allowed])
        return build_listing(context, ordinals, total, allowed)


def _give_up(missing: Mapping[Any, Reason], errors: Iterable[BaseException | None], share_ms: float) -> NoReturn:
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
