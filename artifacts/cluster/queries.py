"""Searches on the cluster, and its scores brought back to ours.

A search names documents by `ordinal`. `allowed` is a query that documents must match, as `filter_query` makes it.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from lightretriever.artifacts.cluster.schema import MAX_FOUND, feature, filter_field
from lightretriever.artifacts.documents.fields import Order
from lightretriever.artifacts.dtypes import Float32Array, Int64Array, IntegerArray
from lightretriever.artifacts.sparse.index import weighted_query

Query = dict[str, Any]
"""A query or a search in OpenSearch's language."""

_MIN_EFFORT: Final = 512
"""Least `ef_search`. Queries lie away from the documents, so HNSW needs more effort than for documents."""

_PLAIN: Final = {
    "_source": False,
    "stored_fields": "_none_",
    "track_total_hits": False,
    "sort": [{"_score": "desc"}, {"ordinal": "asc"}],
}
_NOTHING: Final[Query] = {"match_none": {}}


def dense_search(vector: Float32Array, count: int, allowed: Query | None = None) -> Query:
    """Find the best `count` documents by the inner product with a vector (D,), of those `allowed`."""
    count = min(count, MAX_FOUND)
    effort = min(MAX_FOUND, max(_MIN_EFFORT, 4 * count))
    knn: Query = {"vector": vector, "k": count, "method_parameters": {"ef_search": effort}}
    if allowed is not None:
        knn["filter"] = allowed  # beside knn it would filter afterwards
    return {**_PLAIN, "size": count, "query": {"knn": {"vector": knn}}}


def sparse_search(
    terms: Sequence[str],
    weights: Float32Array,
    count: int,
    allowed: Query | None = None,
    *,
    large: bool,
    every: bool = False,
) -> Query:
    """Find the best `count` documents by the sum over terms (t,) of weight times impact, of those `allowed`; with
    `every` all of these, also those without a term."""
    parts = [(False, 1.0), (True, 512.0)] if large else [(False, 1.0)]
    names, values = weighted_query(terms, weights)
    clauses: list[Query] = [
        {"rank_feature": {"field": f"impacts.{feature(term, high=high)}", "boost": weight * factor, "linear": {}}}
        for term, weight in zip(names, values.tolist(), strict=True)
        for high, factor in parts
    ]
    query: Query = {"bool": {"should": clauses}} if clauses else _NOTHING
    if every and allowed is not None:
        query = {"bool": {"should": clauses, "filter": [allowed]}}
    elif clauses and allowed is not None:
        query = {"bool": {"must": [query], "filter": [allowed]}}
    return {**_PLAIN, "size": min(count, MAX_FOUND), "query": query}


def of_ordinals(ordinals: IntegerArray) -> Query:
    """Match given documents (m,)."""
    return {"terms": {"ordinal": ordinals.tolist()}}


def matching(*filters: Query | None) -> Query:
    """Match the documents that match all `filters`, without a score; None: all documents."""
    clauses = [query for query in filters if query is not None]
    return {"bool": {"filter": clauses}} if clauses else {"match_all": {}}


def listing(allowed: Query | None, order: Order | None, offset: int, count: int) -> Query:
    """Return the `allowed` documents from the one at `offset` on, up to `count`, in an order, or by ordinal."""
    by: list[Query] = [{"ordinal": "asc"}]
    if order is not None:
        way = {"order": "desc", "mode": "max"} if order.descending else {"order": "asc", "mode": "min"}
        by.insert(0, {filter_field(order.field): {**way, "missing": "_last"}})
    page = {"from": offset, "size": count, "query": matching(allowed), "sort": by}
    return {**page, "_source": False, "docvalue_fields": ["ordinal"]}


def read_hits(leg: str, answer: Query) -> tuple[Int64Array, Float32Array]:
    """Return ordinals (m,) int64 and our scores (m,) float32, best first, ties by ordinal, of the answer to a
    search."""
    hits = answer["hits"]["hits"]
    ordinals = np.array([hit["sort"][1] for hit in hits], np.int64)
    raw = np.array([hit["sort"][0] for hit in hits], np.float32)
    if leg == "dense":  # 1 + s, or 1 / (1 - s) for s < 0
        wide = raw.astype(np.float64)
        raw = np.where(wide >= 1, wide - 1, 1 - 1 / np.maximum(wide, 1e-30)).astype(np.float32)
    order = np.lexsort((ordinals, -raw))
    return ordinals[order], raw[order]


def filter_query(condition: Sequence[str]) -> Query:
    """Translate a condition, in the form that Java's DocumentFilter reads. ValueError for another form."""
    texts = iter(condition)
    query = _condition(texts)
    if (left := next(texts, None)) is not None:
        raise ValueError(f"a condition goes on after its end with {left!r}")
    return query


def _condition(texts: Any) -> Query:
    operator = next(texts)
    if operator in ("and", "or"):
        parts = [_condition(texts) for _ in range(int(next(texts)))]
        if operator == "and":
            return {"bool": {"filter": parts}}
        return {"bool": {"should": parts, "minimum_should_match": 1}}
    if operator == "not":
        return {"bool": {"must_not": [_condition(texts)]}}
    if operator == "ids":
        return {"ids": {"values": [next(texts) for _ in range(int(next(texts)))]}}
    field = filter_field(next(texts))
    if operator == "exists":
        return {"exists": {"field": field}}
    if operator == "keyword":
        return {"terms": {field: [next(texts) for _ in range(int(next(texts)))]}}
    if operator == "numbers":
        return {"terms": {field: [float(next(texts)) for _ in range(int(next(texts)))]}}
    if operator not in ("number", "date"):
        raise ValueError(f"unknown operator: {operator}")
    number = float if operator == "number" else int
    low, high = number(next(texts)), number(next(texts))
    if low == np.inf or high == -np.inf:  # JSON has no infinity, and no document has this value
        return _NOTHING
    return {"range": {field: {name: value for name, value in (("gte", low), ("lte", high)) if abs(value) < np.inf}}}
