"""seekdb, a ready-made engine, over the dense and sparse vectors of a bundle.

    python -m research.servers.seekdb BUNDLE --work FOLDER --port 0

The embedded form, `pylibseekdb`, starts the engine as a separate process that is queried in SQL: HNSW with the
parameters below for the dense vectors, SINDI without pruning for the sparse ones. Queries are encoded as in the
service. A separate statement searches each field for 100 candidates, because the engine's hybrid search refuses a table
with a primary key; reciprocal rank fusion merges the rankings. The documents come from the engine too.
"""

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import local
from typing import Any, Final

import orjson
import pylibseekdb
import pymysql

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

__all__ = ["build_table", "main", "opened"]

_BATCH: Final = 500
_NAME: Final = "documents"
_TABLE: Final = "create table documents (number int primary key, dense vector({}), sparse sparsevector, raw longtext)"
_INDEXES: Final = (
    """create vector index of_dense on documents (dense)
    with (distance=inner_product, type=hnsw, lib=vsag, m=32, ef_construction=200, ef_search=128)""",
    "create vector index of_sparse on documents (sparse) with (distance=inner_product, type=sindi, lib=vsag)",
)
# The engine uses its index for this function and order only; `inner_product` reads the whole table.
_RANKED: Final = "select number from documents order by negative_inner_product({}, %s) approximate limit {}"
_TIMEOUTS: Final = ("ob_query_timeout", "ob_trx_timeout")  # in microseconds; an index takes longer than their defaults
_DAY_US: Final = 86_400_000_000


def build_table(bundle: Bundle, path: Path) -> None:
    """Load the documents of a bundle into a new database in the folder `path`, and build its indexes."""
    rows, numbers = read_rows(bundle), term_numbers(bundle)
    with _instance(path) as options, pymysql.connect(**options, autocommit=True) as connection:
        cursor = connection.cursor()
        for timeout in _TIMEOUTS:
            cursor.execute(f"set {timeout} = {_DAY_US}")
        cursor.execute(f"create database {_NAME}")
        connection.select_db(_NAME)
        cursor.execute(_TABLE.format(bundle.manifest.dimension))
        while batch := [
            (number, _literal(dense), _literal(by_number(sparse, numbers)), raw.decode())
            for number, dense, sparse, raw in islice(rows, _BATCH)
        ]:
            cursor.executemany("insert into documents values (%s, %s, %s, %s)", batch)
        for index in _INDEXES:
            cursor.execute(index)


@contextmanager
def opened(bundle: Bundle, path: Path) -> Iterator[Search]:
    """Search the database in the folder `path`, with a connection per thread."""
    encode, numbers, own = vectors_of(bundle), term_numbers(bundle), local()
    with _instance(path) as options:

        def rows(statement: str, values: Any) -> Iterable[tuple[Any, ...]]:
            if not hasattr(own, "connection"):
                own.connection = pymysql.connect(**options, database=_NAME, autocommit=True)
            with own.connection.cursor() as cursor:
                cursor.execute(statement, (values,))
                found: Iterable[tuple[Any, ...]] = cursor.fetchall()
            return found

        def search(query: str, k: int) -> Hits:
            scores: dict[int, float] = {}
            dense, sparse = encode(query)
            legs: list[tuple[str, Collection[float]]] = [("dense", dense)]
            if known := by_number(sparse, numbers):
                legs.append(("sparse", known))
            for field, vector in legs:
                ranked = rows(_RANKED.format(field, max(CANDIDATES, k)), _literal(vector))
                for rank, (number,) in enumerate(ranked, start=1):
                    scores[number] = scores.get(number, 0.0) + 1 / (RANK_CONSTANT + rank)
            best = sorted(scores, key=lambda number: (-scores[number], number))[:k]
            documents = dict(rows("select number, raw from documents where number in %s", best)) if best else {}
            return [hit(rank, scores[number], documents[number]) for rank, number in enumerate(best, start=1)]

        yield search


@contextmanager
def _instance(path: Path) -> Iterator[Mapping[str, Any]]:
    """Run the engine over the folder `path` during the block; return the options of a connection."""
    instance = pylibseekdb.open(str(path))
    try:
        yield instance.connection_options()
    finally:
        instance.close()


def _literal(vector: Collection[float]) -> str:
    """Write a vector in the engine's SQL: `[0.5,0.25]`, `{7:1.5,9:2.0}`."""
    return orjson.dumps(vector, option=orjson.OPT_NON_STR_KEYS).decode().replace('"', "")


main = serve_system("seekdb", index_of("seekdb", build_table), opened)


if __name__ == "__main__":
    sys.exit(main())
