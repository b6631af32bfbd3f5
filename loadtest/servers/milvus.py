"""Milvus Lite, a ready-made engine, over the dense and sparse vectors of a bundle.

    python -m loadtest.servers.milvus BUNDLE --work FOLDER --port 0

A query is encoded as the service does it, both fields are searched for 100 candidates each (HNSW with the parameters
below, exact sparse inner product), and merged by reciprocal rank fusion with the engine's default constant; its own
code for that is part of its gRPC server, which needs another package. The documents come from the engine too. Its
Python interface is used in process, without that server. The index is made in FOLDER at
the first start; that takes long and much memory, because the engine is made for small collections.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from milvus_lite import CollectionSchema, DataType, FieldSchema, MilvusLite

from artifacts.bundle import Bundle
from artifacts.errors import LightRetrieverError
from artifacts.lucene.search import ImpactIndex
from loadtest.servers.documents import built, read_postings, stored_documents
from loadtest.servers.thin import Hits, application, serve, warm_up
from service.documents import Documents
from service.encoder import QueryEncoder
from service.telemetry import StageClock

__all__ = ["Milvus", "build_collection", "main"]

NAME: Final = "documents"
CANDIDATES: Final = 100
_BATCH: Final = 500
_RANK_CONSTANT: Final = 60
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
    with MilvusLite(str(path)) as database:
        collection = database.create_collection(NAME, schema)
        batch = []
        for row in _rows(bundle, index):
            batch.append(row)
            if len(batch) == _BATCH:
                collection.insert(batch)
                batch = []
        if batch:
            collection.insert(batch)
        collection.flush()
        collection.create_index("dense", _DENSE)
        collection.create_index("sparse", _SPARSE)
        collection.load()


def _rows(bundle: Bundle, index: ImpactIndex) -> Iterator[dict[str, Any]]:
    dense = bundle.dense()
    indptr, terms, impacts = read_postings(index, bundle.manifest.vocab_size)
    for number, raw in enumerate(stored_documents(index)):
        own = slice(indptr[number], indptr[number + 1])
        # The engine refuses sparse vectors without a weight: a document without terms gets one that no query has.
        sparse = dict(zip(terms[own].tolist(), impacts[own].tolist(), strict=True)) or {bundle.manifest.vocab_size: 1.0}
        vector = dense.vectors(np.array([number]))[0].tolist()
        yield {"number": number, "dense": vector, "sparse": sparse, "raw": orjson.loads(raw)}


class Milvus:
    """Searches a collection that `build_collection` made."""

    def __init__(self, bundle: Bundle, collection: Any) -> None:
        task = bundle.manifest.default_task
        self._encoder = QueryEncoder(bundle.tokenizer(), {task: bundle.table(task)}, bundle.idf())
        self._task = task
        self._collection = collection
        collection.load()

    def search(self, query: str, k: int) -> Hits:
        """The best `k` documents."""
        encoded = self._encoder.encode(query, self._task, StageClock())
        if encoded.dense is None:
            raise ValueError("the query was encoded without its dense vector")
        sparse = dict(zip(encoded.terms.tolist(), encoded.weights.tolist(), strict=True))
        count = max(CANDIDATES, k)
        legs = [
            self._collection.search([vector], top_k=count, metric_type="IP", anns_field=field, output_fields=[])
            for field, vector in (("dense", encoded.dense.tolist()), ("sparse", sparse))
        ]
        scores: dict[int, float] = {}
        for (hits,) in legs:
            for rank, hit in enumerate(hits, start=1):
                scores[hit["id"]] = scores.get(hit["id"], 0.0) + 1 / (_RANK_CONSTANT + rank)
        best = sorted(scores, key=lambda number: (-scores[number], number))[:k]
        documents = {row["number"]: row["raw"] for row in self._collection.get(best, output_fields=["number", "raw"])}
        return [_hit(rank, scores[number], documents[number]) for rank, number in enumerate(best, start=1)]


def _hit(rank: int, score: float, raw: str) -> dict[str, Any]:
    fields = orjson.loads(raw)
    return {"id": fields.pop("_id"), "rank": rank, "score": score, "fields": fields}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; returns the exit status."""
    parser = argparse.ArgumentParser(description="Milvus Lite over the vectors of a bundle.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for the index")
    parser.add_argument("--build", action="store_true", help="make the index, print its folder, and end")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args(arguments)
    try:
        bundle = Bundle.open(given.bundle)
        with bundle.sparse() as index:
            path = built(given.work, bundle, "milvus", lambda folder: build_collection(bundle, index, folder))
            if given.build:
                print(path)
                return 0
            probes = Documents(index).probes(2000)
        with MilvusLite(str(path)) as database:
            milvus = Milvus(bundle, database.get_collection(NAME))
            warm_up(milvus.search, probes)
            what = f"Milvus Lite with {bundle.manifest.documents} documents"
            serve(partial(application, milvus.search), what, host=given.host, port=given.port)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
