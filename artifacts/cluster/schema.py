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
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final, Literal
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ConfigDict

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.documents.fields import NAMES, FieldKind, indexed_values
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.artifacts.tokens.tokenizer import text_of

Engine = Literal["lucene", "faiss"]
"""The library that stores and searches the vectors on the cluster."""

MAX_CLUSTER_DIMENSION: Final = 16_000
"""Most values of a vector on a cluster."""

MAX_FOUND: Final = 10_000
"""Most documents that one search on a cluster finds."""

FIRST_LIVE: Final = 1 << 62
"""Least ordinal of a document that was written after the bundle."""

MAX_PLAIN_IMPACT: Final = 511
"""Largest impact of an index that is not `large`."""

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
    engine: Engine
    vocabulary: VocabularyKind
    large: bool
    fields: dict[str, FieldKind]
    live: bool = False

    @classmethod
    def of(cls, manifest: Manifest, engine: Engine, *, large: bool) -> "IndexMeta":
        """Describe the index of a bundle."""
        return cls(
            bundle=manifest.name,
            version=manifest.digest,
            documents=manifest.documents,
            dimension=None if manifest.dense is None else manifest.dimension,
            tokenizer_sha256=manifest.tokenizer.sha256,
            engine=engine,
            vocabulary=manifest.sparse.vocabulary,
            large=large,
            fields={**manifest.fields, NAMES: "keyword"},
        )


def index_name(alias: str, manifest: Manifest, engine: Engine, shards: int) -> str:
    """Name the index: the same for the same bundle, engine and shards, so that a stopped writer finds it again."""
    identity = f"{_FORMAT} {manifest.digest} {engine} {shards}"
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
