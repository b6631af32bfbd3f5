"""The format of an index on the cluster: one document for each of the bundle's, with these fields.

    ordinal   its position in the bundle; ties are broken by it, and legs name documents by it
    vector    the dense vector (D,), searched by inner product; not in an index of a bundle without a dense leg
    impacts   rank features by term; a dot in a term, which would nest fields, is written ․ there. A cluster keeps 9
              significant bits, so an impact is 1 to 511 in the feature "T", and where it is larger, the whole 512s are
              in "T⇪": every impact comes back exactly
    filter    values of the declared fields
    raw       the document's JSON, byte for byte
    hashes    digests of title and text, and of the JSON, by which `upsert` knows what changed

Documents that were written after the bundle have ordinals from 2**62 on, made of their ids. The mapping's `_meta` is an
`IndexMeta`. The index' name is NAME-HASH, NAME an alias for it.

Below are its searches, and the cluster's scores brought back to ours. They name documents by `ordinal`; `allowed` is a
query that documents must match, as `filter_query` makes it.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.documents.fields import NAMES, FieldKind, Order, indexed_values
from lightretriever.artifacts.dtypes import Float32Array, Int64Array, IntegerArray
from lightretriever.artifacts.sparse.index import weighted_query
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.artifacts.tokens.tokenizer import text_of

MAX_CLUSTER_DIMENSION: Final = 16_000  # values of a vector
MAX_FOUND: Final = 10_000  # documents that one search finds
FIRST_LIVE: Final = 1 << 62  # the least ordinal of a document that was written after the bundle
MAX_PLAIN_IMPACT: Final = 511  # of an index that is not `large`
_FORMAT: Final = 3
_HIGH: Final = 512
_HIGH_MARK: Final = "\u21ea"
_DOT: Final = "\u2024"
_HASH_CHARS: Final = 12


class IndexMeta(BaseModel):
    """Describes the bundle that an index was written from. `dimension`: D, None without a dense leg. `large`: whether
    some impact is above 511. `live`: whether documents may have been written or deleted since."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["lightretriever-index"] = "lightretriever-index"
    format_version: Literal[3] = _FORMAT
    bundle: str
    version: str
    documents: int
    dimension: int | None
    tokenizer_sha256: str
    engine: str = "lucene"
    vocabulary: VocabularyKind
    large: bool
    fields: dict[str, FieldKind]
    live: bool = False

    @classmethod
    def of(cls, manifest: Manifest, *, large: bool) -> "IndexMeta":
        """Describe the index of a bundle."""
        return cls(
            bundle=manifest.name,
            version=manifest.digest,
            documents=manifest.documents,
            dimension=None if manifest.dense is None else manifest.dimension,
            tokenizer_sha256=manifest.tokenizer.sha256,
            vocabulary=manifest.sparse.vocabulary,
            large=large,
            fields={**manifest.fields, NAMES: "keyword"},
        )


def index_name(alias: str, manifest: Manifest, shards: int) -> str:
    """Name the index: the same for the same bundle and shards, so that a stopped writer finds it again."""
    identity = f"{_FORMAT} {manifest.digest} lucene {shards}"
    return f"{alias}-{hashlib.sha256(identity.encode()).hexdigest()[:_HASH_CHARS]}"


def index_body(meta: IndexMeta, *, shards: int, replicas: int) -> dict[str, Any]:
    """Return settings and mapping of a new index, which is not refreshed while it is written."""
    kinds = {"keyword": "keyword", "number": "double", "date": "long"}  # dates are milliseconds since 1970
    method = {"name": "hnsw", "engine": meta.engine, "space_type": "innerproduct"}
    fields: dict[str, Any] = {filter_field(name): {"type": kinds[kind]} for name, kind in meta.fields.items()}
    if meta.dimension is not None:
        fields["vector"] = {"type": "knn_vector", "dimension": meta.dimension, "method": method}
    return {
        "settings": {
            "index": {
                "knn": meta.dimension is not None,
                "number_of_shards": shards,
                "number_of_replicas": replicas,
                "refresh_interval": "-1",
            }
        },
        "mappings": {
            "dynamic": "strict",
            "_meta": meta.model_dump(),
            "properties": {
                "ordinal": {"type": "long"},
                "impacts": {"type": "rank_features"},
                "raw": {"type": "object", "enabled": False},  # any JSON, kept as it is and not indexed
                "hashes": {"type": "object", "enabled": False},
                **fields,
            },
        },
    }


def filter_field(name: str) -> str:
    """Name the field with the values of a declared field; unusual characters are escaped, a dot would nest fields."""
    return f"filter_{quote(name, safe=' ').replace('.', '%2E')}"


def live_ordinal(document_id: str) -> int:
    """Return the ordinal, from 2**62 on, of a document that the bundle lacks: a hash of its id, so that no writer has
    to ask another. Of ten million such documents, two get the same one with a probability of 1 to 90,000."""
    digest = hashlib.blake2b(document_id.encode(), digest_size=8).digest()
    return FIRST_LIVE + (int.from_bytes(digest) >> 2)


def document_hashes(text: str, raw: bytes) -> list[str]:
    """Return the digests of a document's title and text, and of its JSON."""
    return [hashlib.blake2b(content, digest_size=16).hexdigest() for content in (text.encode(), raw)]


def feature(term: str, *, high: bool = False) -> str:
    """Name the rank feature of a term, or that of the whole 512s of its impact."""
    return term.replace(".", _DOT) + (_HIGH_MARK if high else "")


def features(impacts: Mapping[str, int]) -> dict[str, int]:
    """Return the rank features of a document's impacts by term, 1 to 65,535: of each one or two, of at most 9 bits."""
    values: dict[str, int] = {}
    for term, impact in impacts.items():
        high, low = divmod(impact, _HIGH)
        if low:
            values[feature(term)] = low
        if high:
            values[feature(term, high=True)] = high
    return values


def read_features(features: Mapping[str, float]) -> dict[str, int]:
    """Return a document's impacts by term from its rank features."""
    impacts: dict[str, int] = {}
    for name, value in features.items():
        term, high = name.removesuffix(_HIGH_MARK).replace(_DOT, "."), name.endswith(_HIGH_MARK)
        impacts[term] = impacts.get(term, 0) + int(value) * (_HIGH if high else 1)
    return impacts


def document_body(
    ordinal: int, raw: bytes, vector: Float32Array | None, impacts: Mapping[str, int], fields: Mapping[str, FieldKind]
) -> dict[str, Any]:
    """Return a document as the cluster gets it, without a vector where there is no dense leg. ValueError for a value
    that is not of its field's kind."""
    record = orjson.loads(raw)
    body: dict[str, Any] = {"ordinal": ordinal, "impacts": impacts, "raw": raw.decode()}
    if vector is not None:
        body["vector"] = vector
    body["hashes"] = document_hashes(text_of(record), raw)
    for name, value in indexed_values(record, fields):
        kind = {"keyword": str, "number": float, "date": int}[fields[name]]
        body.setdefault(filter_field(name), []).append(kind(value))
    return body


Query = dict[str, Any]  # a query or a search in OpenSearch's language
_MIN_EFFORT: Final = 512  # least `ef_search`: queries lie away from the documents, so HNSW needs more than for these
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


def filter_query(condition: Iterable[str]) -> Query:
    """Translate a condition, in the form that Java's DocumentFilter reads. ValueError for another form."""
    texts = iter(condition)
    match operator := next(texts):
        case "and":
            return {"bool": {"filter": [filter_query(texts) for _ in range(int(next(texts)))]}}
        case "or":
            parts = [filter_query(texts) for _ in range(int(next(texts)))]
            return {"bool": {"should": parts, "minimum_should_match": 1}}
        case "not":
            return {"bool": {"must_not": [filter_query(texts)]}}
        case "ids":
            return {"ids": {"values": [next(texts) for _ in range(int(next(texts)))]}}
    field = filter_field(next(texts))
    match operator:
        case "exists":
            return {"exists": {"field": field}}
        case "keyword":
            return {"terms": {field: [next(texts) for _ in range(int(next(texts)))]}}
        case "numbers":
            return {"terms": {field: [float(next(texts)) for _ in range(int(next(texts)))]}}
        case "number" | "date":
            number = float if operator == "number" else int
            low, high = number(next(texts)), number(next(texts))
            if low == np.inf or high == -np.inf:  # JSON has no infinity, and no document has this value
                return _NOTHING
            bounds = {name: value for name, value in (("gte", low), ("lte", high)) if abs(value) < np.inf}
            return {"range": {field: bounds}}
    raise ValueError(f"unknown operator: {operator}")
