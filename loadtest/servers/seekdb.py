"""seekdb, a ready-made engine, over the dense and sparse vectors of a bundle.

    python -m lightretriever.loadtest.servers.seekdb BUNDLE --work FOLDER --port 0

The embedded form, `pylibseekdb`, which starts the engine as a process of its own, to be asked in SQL. HNSW with the
parameters below for the dense vectors, SINDI without pruning for the sparse ones, both in memory. Each field is asked
by a statement of its own: the engine's hybrid search, `dbms_hybrid_search`, refuses a table with a primary key. The
index is made in FOLDER at the first start.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from threading import local
from typing import Any, Final

import orjson
import pylibseekdb
import pymysql
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.loadtest.servers.engines import Row, main_of, read_rows

__all__ = ["Seekdb", "build_table", "main", "opened"]

_DATABASE: Final = "loadtest"
_BATCH: Final = 500
_TABLE: Final = "create table documents (number int primary key, dense vector({}), sparse sparsevector, raw longtext)"
_DENSE: Final = """create vector index of_dense on documents (dense)
    with (distance=inner_product, type=hnsw, lib=vsag, m=32, ef_construction=200, ef_search=128)"""
_SPARSE: Final = """create vector index of_sparse on documents (sparse)
    with (distance=inner_product, type=sindi, lib=vsag)"""
_INSERT: Final = "insert into documents values (%s, %s, %s, %s)"
# The index is asked for this function in this order only; `inner_product` reads the whole table.
_RANKED: Final = "select number from documents order by negative_inner_product({}, %s) approximate limit {}"
_DOCUMENTS: Final = "select number, raw from documents where number in %s"
_TIMEOUTS: Final = ("ob_query_timeout", "ob_trx_timeout")  # in microseconds; an index takes longer than their defaults
_DAY_US: Final = 86_400_000_000


def build_table(bundle: Bundle, index: ImpactIndex, path: Path) -> None:
    """Put all documents of a bundle into a new database in the folder `path`, and make its indexes."""
    rows = read_rows(bundle, index)
    with _instance(path) as instance, pymysql.connect(**instance.connection_options(), autocommit=True) as connection:
        cursor = connection.cursor()
        for timeout in _TIMEOUTS:
            cursor.execute(f"set {timeout} = {_DAY_US}")
        cursor.execute(f"create database {_DATABASE}")
        connection.select_db(_DATABASE)
        cursor.execute(_TABLE.format(bundle.manifest.dimension))
        while batch := [_record(row) for row in islice(rows, _BATCH)]:
            cursor.executemany(_INSERT, batch)
        cursor.execute(_DENSE)
        cursor.execute(_SPARSE)


class Seekdb:
    """The table that `build_table` made, asked with a connection for every thread."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._own = local()

    def ranked(self, field: str, vector: list[float] | dict[int, float], count: int) -> list[int]:
        """See `Engine`."""
        return [number for (number,) in self._asked(_RANKED.format(field, count), _literal(vector))]

    def documents(self, ordinals: Sequence[int]) -> Mapping[int, bytes | str]:
        """See `Engine`."""
        return dict(self._asked(_DOCUMENTS, list(ordinals))) if ordinals else {}

    def _asked(self, statement: str, *values: Any) -> Iterable[tuple[Any, ...]]:
        if not hasattr(self._own, "connection"):
            self._own.connection = pymysql.connect(**self._options, database=_DATABASE, autocommit=True)
        with self._own.connection.cursor() as cursor:
            cursor.execute(statement, values)
            rows: Iterable[tuple[Any, ...]] = cursor.fetchall()
        return rows


@contextmanager
def opened(path: Path) -> Iterator[Seekdb]:
    """The database in the folder `path`."""
    with _instance(path) as instance:
        yield Seekdb(instance.connection_options())


@contextmanager
def _instance(path: Path) -> Iterator[Any]:
    """The engine's process over the folder `path`, until the end of the block."""
    instance = pylibseekdb.open(str(path))
    try:
        yield instance
    finally:
        instance.close()


def _record(row: Row) -> tuple[int, str, str, str]:
    number, dense, sparse, raw = row
    return number, _literal(dense), _literal(sparse), raw.decode()


def _literal(vector: list[float] | dict[int, float]) -> str:
    """A vector as the engine's SQL has it: `[0.5,0.25]`, `{7:1.5,9:2.0}`."""
    return orjson.dumps(vector, option=orjson.OPT_NON_STR_KEYS).decode().replace('"', "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; returns the exit status."""
    return main_of("seekdb", "seekdb", build_table, opened, arguments)


if __name__ == "__main__":
    sys.exit(main())
