"""Milvus Lite, a ready-made engine, over the dense and sparse vectors of a bundle.

    python -m lightretriever.loadtest.servers.milvus BUNDLE --work FOLDER --port 0

HNSW with the parameters below for the dense vectors, exact inner product for the sparse ones. The engine's own code for
merging both is part of its gRPC server, which needs another package; its Python interface is used in process, without
that server. The index is made in FOLDER at the first start; that takes long and much memory, because the engine is made
for small collections.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import orjson
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.loadtest.servers.engines import Row, main_of, read_rows
from milvus_lite import CollectionSchema, DataType, FieldSchema, MilvusLite

__all__ = ["Milvus", "build_collection", "main", "opened"]

NAME: Final = "documents"
_BATCH: Final = 500
_DENSE: Final = {
    "index_type": "HNSW",
    "metric_type": "IP",
    "params": {"M": 32, "efConstruction": 200},
    "search_params": {"ef": 128},
}
_SPARSE: Final = {"index_type": "SPARSE_INVERTED_INDEX", "metric_type": "IP", "params": {}}


def build_collection(bundle: Bundle, index: ImpactIndex, path: Path) -> None:
    """Put all documents of a bundle into a new database in the folder `path`, and make its indexes."""
    schema = CollectionSchema(
        fields=[
            FieldSchema(name="number", dtype=DataType.INT64, is_primary=True),
            FieldSchema(name="dense", dtype=DataType.FLOAT_VECTOR, dim=bundle.manifest.dimension),
            FieldSchema(name="sparse", dtype=DataType.SPARSE_FLOAT_VECTOR),
            FieldSchema(name="raw", dtype=DataType.JSON),
        ]
    )
    # The engine refuses sparse vectors without a weight: a document without terms gets one that no query has.
    none = {bundle.manifest.vocab_size: 1.0}
    rows = read_rows(bundle, index)
    with MilvusLite(str(path)) as database:
        collection = database.create_collection(NAME, schema)
        while batch := [_record(row, none) for row in islice(rows, _BATCH)]:
            collection.insert(batch)
        collection.flush()
        collection.create_index("dense", _DENSE)
        collection.create_index("sparse", _SPARSE)
        collection.load()


def _record(row: Row, none: dict[int, float]) -> dict[str, Any]:
    number, dense, sparse, raw = row
    return {"number": number, "dense": dense, "sparse": sparse or none, "raw": orjson.loads(raw)}


class Milvus:
    """A collection that `build_collection` made."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        collection.load()

    def ranked(self, field: str, vector: list[float] | dict[int, float], count: int) -> list[int]:
        """See `Engine`."""
        (hits,) = self._collection.search([vector], top_k=count, metric_type="IP", anns_field=field, output_fields=[])
        return [hit["id"] for hit in hits]

    def documents(self, ordinals: Sequence[int]) -> Mapping[int, bytes | str]:
        """See `Engine`."""
        rows = self._collection.get(list(ordinals), output_fields=["number", "raw"])
        return {row["number"]: row["raw"] for row in rows}


@contextmanager
def opened(path: Path) -> Iterator[Milvus]:
    """The database in the folder `path`."""
    with MilvusLite(str(path)) as database:
        yield Milvus(database.get_collection(NAME))


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; returns the exit status."""
    return main_of("Milvus Lite", "milvus", build_collection, opened, arguments)


if __name__ == "__main__":
    sys.exit(main())
