"""Milvus Lite, a ready-made engine in Python, over the dense and sparse vectors of a bundle.

    python -m research.servers.milvus BUNDLE --work FOLDER --port 0

HNSW with the parameters below for the dense vectors, its exact inverted index for the sparse ones. The engine's own
hybrid search asks both for 100 candidates and merges the rankings by RRF; it gives the documents too.
"""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from milvus_lite.server_manager import server_manager_instance
from pymilvus import AnnSearchRequest, DataType, MilvusClient, RRFRanker

from lightretriever.artifacts.bundle.reader import Bundle
from research.servers.bundle_documents import (
    CANDIDATES,
    RANK_CONSTANT,
    by_number,
    hit,
    index_of,
    read_rows,
    term_numbers,
    vectors_of,
)
from research.servers.minimal_server import Hits, Search, serve_system

_BATCH: Final = 1000
_NAME: Final = "documents"
_LONGEST: Final = 65_535  # bytes of a string
_DENSE: Final = {"index_type": "HNSW", "metric_type": "IP", "params": {"M": 32, "efConstruction": 200}}
_SPARSE: Final = {"index_type": "SPARSE_INVERTED_INDEX", "metric_type": "IP"}
_EFFORT: Final = {"metric_type": "IP", "params": {"ef": 128}}


def build_collection(bundle: Bundle, path: Path) -> None:
    """Load the documents of a bundle into a new database in the folder `path`, and build its indexes."""
    path.mkdir()
    rows, numbers = read_rows(bundle), term_numbers(bundle)
    with _client(path) as client:
        schema = client.create_schema(auto_id=False)
        schema.add_field("number", DataType.INT64, is_primary=True)
        schema.add_field("dense", DataType.FLOAT_VECTOR, dim=bundle.manifest.dimension)
        schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
        schema.add_field("raw", DataType.VARCHAR, max_length=_LONGEST)
        client.create_collection(_NAME, schema=schema)
        while batch := list(islice(rows, _BATCH)):
            named = [
                {"number": number, "dense": dense, "sparse": by_number(sparse, numbers), "raw": raw.decode()}
                for number, dense, sparse, raw in batch
            ]
            client.insert(_NAME, named)
        client.flush(_NAME)
        indexes = client.prepare_index_params()
        indexes.add_index("dense", **_DENSE)
        indexes.add_index("sparse", **_SPARSE)
        client.create_index(_NAME, indexes)


@contextmanager
def opened(bundle: Bundle, path: Path) -> Iterator[Search]:
    """Search the database in the folder `path`."""
    encode, numbers = vectors_of(bundle), term_numbers(bundle)
    with _client(path) as client:
        client.load_collection(_NAME)

        def search(query: str, k: int) -> Hits:
            dense, sparse = encode(query)
            count = max(CANDIDATES, k)
            legs = [AnnSearchRequest([dense], "dense", _EFFORT, count)]
            if known := by_number(sparse, numbers):
                legs.append(AnnSearchRequest([known], "sparse", {"metric_type": "IP"}, count))
            (found,) = client.hybrid_search(_NAME, legs, RRFRanker(RANK_CONSTANT), k, output_fields=["raw"])
            return [hit(rank, one["distance"], one["entity"]["raw"]) for rank, one in enumerate(found, start=1)]

        yield search


@contextmanager
def _client(path: Path) -> Iterator[MilvusClient]:
    """Run the engine over the folder `path` in threads of this process, and give a connection."""
    file = str(path / f"{_NAME}.db")
    try:
        with closing(MilvusClient(file)) as client:
            yield client
    finally:
        server_manager_instance.release_server(file)


main = serve_system("Milvus Lite", index_of("milvus", build_collection), opened)


if __name__ == "__main__":
    sys.exit(main())
