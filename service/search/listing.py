"""Documents without a query: all that match a filter, in the order of a declared field or of writing.

No leg is searched, so hits have no scores, and totals and facets are of all documents that match.
"""

from collections.abc import Callable
from time import perf_counter
from typing import Final

from lightretriever.service.backends.base import NO_TOKENS, EncodedQuery
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import Plain
from lightretriever.service.search.documents import reading
from lightretriever.service.search.parts import Parts
from lightretriever.service.search.request import Plan
from lightretriever.service.search.snippets import snippets_of

__all__ = ["list_documents"]

_NO_QUERY: Final = EncodedQuery([], NO_TOKENS.counts, NO_TOKENS.weights, NO_TOKENS, None)


def list_documents(
    parts: Parts, plan: Plan, clock: StageClock, until: float, require_time: Callable[[str], None]
) -> Plain:
    """Give the page of a plan without a query, as `SearchResponse` without its times.

    until: the `perf_counter` time by which an order has to be found. `require_time` is called before each step with the
    name of the step, and may raise. DeadlineError, SearchFailedError, NotReadyError as `Documents` raises them, and
    DocumentsGoneError if a document was deleted meanwhile.
    """
    request, store, among = plan.request, parts.documents.store, None
    if plan.condition is not None:
        with clock.measure("filter"):
            among = parts.filters.where(plan.condition)
    require_time("order the documents")
    with clock.measure("rank"), reading():
        seconds = until - perf_counter()
        ordinals = store.listed(among, plan.order, request.offset, request.k, seconds)
        (total,) = store.totals([among])
    names, snippets = request.fields, request.snippets
    if names is not None and snippets is not None:
        names = [*names, *snippets.fields]
    require_time("read the documents")
    with clock.measure("fetch"):
        documents = parts.documents.fetch(ordinals, names)
    hits: list[Plain] = []
    for rank, (document_id, fields) in enumerate(documents, start=request.offset + 1):
        kept = fields if request.fields is None else {name: fields[name] for name in request.fields if name in fields}
        hits.append({"id": document_id, "rank": rank, "score": 0.0, "dense": None, "sparse": None, "fields": kept})
    if snippets is not None and hits:
        with clock.measure("snippets"):
            texts = [fields for _, fields in documents]
            vocabulary, wanted = parts.encoder.vocabulary, list(dict.fromkeys(snippets.fields))
            made = snippets_of(
                texts, vocabulary, _NO_QUERY, wanted, snippets.length, lambda: require_time("make the snippets")
            )
            for hit, snippet in zip(hits, made, strict=True):
                hit["snippets"] = snippet
    if request.explain:
        explanation = {"fusion": {"dense": None, "sparse": None}, "words": [], "note": _note(plan)}
        for hit in hits:
            hit["explanation"] = explanation
    facts: Plain = {"hits": hits, "degraded": [], "mode": request.mode, "task": plan.task}
    return facts | {"candidates": total, "total": total} | _facets(parts, plan, clock, require_time)


def _facets(parts: Parts, plan: Plan, clock: StageClock, require_time: Callable[[str], None]) -> Plain:
    """Count values and ranges over all documents that match."""
    request, found = plan.request, dict[str, Plain]()
    if not request.facets and not plan.ranges:
        return found
    require_time("count the facets")
    with clock.measure("facets"):
        among = None if plan.condition is None else parts.filters.where(plan.condition)
        if request.facets:
            found["facets"] = parts.documents.facets_among(request.facets, among)
        if plan.ranges:
            with reading():
                found["facet_ranges"] = _in_ranges(parts, plan, require_time)
    return found


def _in_ranges(parts: Parts, plan: Plan, require_time: Callable[[str], None]) -> Plain:
    store, chosen = parts.documents.store, []
    for ranges in plan.ranges.values():
        for condition in ranges.conditions:
            require_time("count the facets")
            both = condition if plan.condition is None else ("and", "2", *plan.condition, *condition)
            chosen.append(store.where(both))
    totals = iter(store.totals(chosen))
    return {name: ranges.counted(next(totals) for _ in ranges.conditions) for name, ranges in plan.ranges.items()}


def _note(plan: Plan) -> str:
    if plan.order is None:
        return "There is no query: the documents that match are in the order of writing."
    way = "descending" if plan.order.descending else "ascending"
    return f"There is no query: the documents that match are ordered by {plan.order.field}, {way}."
