"""What ready-made engines over the vectors of a bundle have in common: their rows, two rankings made one, the command.

A query is encoded as the service does it, both fields are searched for 100 candidates each, and the two rankings are
merged by reciprocal rank fusion with the constant that engines have by default. The documents come from the engine too.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import orjson
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.loadtest.servers.documents import built, read_postings, stored_documents
from lightretriever.loadtest.servers.thin import Hits, application, serve, warm_up
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.documents import Documents
from lightretriever.service.search.encoder import QueryEncoder

__all__ = ["Engine", "EngineSearch", "Row", "main_of", "read_rows"]

CANDIDATES: Final = 100
_RANK_CONSTANT: Final = 60

Row = tuple[int, list[float], dict[int, float], bytes]
"""A document: its ordinal, dense vector of length D, impacts by term, and JSON."""


class Engine(Protocol):
    """A database that `main_of` has opened. Called from several threads at once."""

    def ranked(self, field: str, vector: list[float] | dict[int, float], count: int) -> list[int]:
        """The ordinals of the best documents by inner product with the `field` "dense" or "sparse", best first."""
        ...

    def documents(self, ordinals: Sequence[int]) -> Mapping[int, bytes | str]:
        """The JSON of documents."""
        ...


def read_rows(bundle: Bundle, index: ImpactIndex) -> Iterator[Row]:
    """All documents of a bundle, in ordinal order."""
    dense = bundle.dense()
    indptr, terms, impacts = read_postings(index, bundle.manifest.vocab_size)
    for number, raw in enumerate(stored_documents(index)):
        own = slice(indptr[number], indptr[number + 1])
        sparse = dict(zip(terms[own].tolist(), impacts[own].tolist(), strict=True))
        yield number, dense.vectors(np.array([number]))[0].tolist(), sparse, raw


class EngineSearch:
    """Searches an engine that holds the documents of a bundle."""

    def __init__(self, bundle: Bundle, engine: Engine) -> None:
        task = bundle.manifest.default_task
        self._encoder = QueryEncoder(bundle.tokenizer(), {task: bundle.table(task)}, bundle.idf())
        self._task = task
        self._engine = engine

    def search(self, query: str, k: int) -> Hits:
        """The best `k` documents."""
        encoded = self._encoder.encode(query, self._task, StageClock())
        if encoded.dense is None:
            raise ValueError("the query was encoded without its dense vector")
        sparse = dict(zip(encoded.terms.tolist(), encoded.weights.tolist(), strict=True))
        count = max(CANDIDATES, k)
        scores: dict[int, float] = {}
        for field, vector in (("dense", encoded.dense.tolist()), ("sparse", sparse)):
            for rank, number in enumerate(self._engine.ranked(field, vector, count), start=1):
                scores[number] = scores.get(number, 0.0) + 1 / (_RANK_CONSTANT + rank)
        best = sorted(scores, key=lambda number: (-scores[number], number))[:k]
        documents = self._engine.documents(best)
        return [_hit(rank, scores[number], documents[number]) for rank, number in enumerate(best, start=1)]


def _hit(rank: int, score: float, raw: bytes | str) -> dict[str, Any]:
    fields = orjson.loads(raw)
    return {"id": fields.pop("_id"), "rank": rank, "score": score, "fields": fields}


def main_of(
    name: str,
    kind: str,
    build: Callable[[Bundle, ImpactIndex, Path], None],
    opened: Callable[[Path], AbstractContextManager[Engine]],
    arguments: Sequence[str] | None,
) -> int:
    """The command of the engine `name`: serve until SIGTERM; returns the exit status.

    `build` puts the documents of a bundle into a new folder, `opened` opens that; `kind` begins the folder's name.
    """
    parser = argparse.ArgumentParser(description=f"{name} over the vectors of a bundle.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for the index")
    parser.add_argument("--build", action="store_true", help="make the index, print its folder, and end")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args(arguments)
    try:
        bundle = Bundle.open(given.bundle)
        with bundle.sparse() as index:
            path = built(given.work, bundle, kind, lambda folder: build(bundle, index, folder))
            if given.build:
                print(path)
                return 0
            probes = Documents(index).probes(2000)
        with opened(path) as engine:
            search = EngineSearch(bundle, engine).search
            warm_up(search, probes)
            what = f"{name} with {bundle.manifest.documents} documents"
            serve(partial(application, search), what, host=given.host, port=given.port)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
