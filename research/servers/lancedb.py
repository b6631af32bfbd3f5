"""LanceDB, a ready-made embedded engine, over the dense vectors and the words of a bundle's documents.

    python -m research.servers.lancedb BUNDLE --work FOLDER --port 0

It has no sparse vectors: its own hybrid search asks an IVF index of HNSW graphs with 8-bit codes for the dense vector,
and its full-text index, BM25 on stemmed words, for the query's text. It merges the rankings by RRF, and gives the
documents too.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import lancedb
import orjson
import pyarrow as pa
from lancedb.index import FTS, HnswSq
from lancedb.query import MatchQuery
from lancedb.rerankers import RRFReranker

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.tokens.tokenizer import text_of
from research.servers.bundle_documents import RANK_CONSTANT, Row, hit, index_of, read_rows, vectors_of
from research.servers.minimal_server import Hits, Search, serve_system

_BATCH: Final = 5000
_NAME: Final = "documents"
_EFFORT: Final = 128


def build_table(bundle: Bundle, path: Path) -> None:
    """Load the documents of a bundle into a new database in the folder `path`, and build its indexes."""
    rows = read_rows(bundle)
    vector = pa.list_(pa.float32(), bundle.manifest.dimension)
    schema = pa.schema([("vector", vector), ("words", pa.string()), ("raw", pa.string())])
    table = lancedb.connect(path).create_table(_NAME, schema=schema)
    while batch := [_record(row) for row in islice(rows, _BATCH)]:
        table.add(batch)
    table.optimize()
    table.create_index("words", config=FTS())
    table.create_index("vector", config=HnswSq(distance_type="dot", m=32, ef_construction=200))


def _record(row: Row) -> dict[str, Any]:
    _, dense, _, raw = row
    return {"vector": dense, "words": text_of(orjson.loads(raw)), "raw": raw.decode()}


@contextmanager
def opened(bundle: Bundle, path: Path) -> Iterator[Search]:
    """Search the database in the folder `path`."""
    encode = vectors_of(bundle)
    table = lancedb.connect(path).open_table(_NAME)
    fusion = RRFReranker(K=RANK_CONSTANT)

    def search(query: str, k: int) -> Hits:
        asked = table.search(query_type="hybrid", vector_column_name="vector", fts_columns="words")
        asked = asked.vector(encode(query)[0]).text(MatchQuery(query, "words")).ef(_EFFORT)
        found = asked.limit(k).rerank(fusion).select(["raw"]).to_list()
        return [hit(rank, one["_relevance_score"], one["raw"]) for rank, one in enumerate(found, start=1)]

    yield search


main = serve_system("LanceDB", index_of("lancedb", build_table), opened)


if __name__ == "__main__":
    sys.exit(main())
