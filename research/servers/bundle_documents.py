"""What other systems take of a bundle: its documents and vectors to index, the vectors of queries, the form of hits."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.bm25 import build_word_index, document_texts
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.encoder import QueryEncoder

CANDIDATES: Final = 100
"""Least candidates of a leg, as in the service."""
RANK_CONSTANT: Final = 60
"""Constant of reciprocal rank fusion, as in the service."""

_READ: Final = 8192  # documents whose terms are read together, since each time asks Lucene every term
Row = tuple[int, list[float], dict[str, float], bytes]
"""A document: its ordinal, dense vector of length D, impacts by term, and JSON."""


def read_rows(bundle: Bundle) -> Iterator[Row]:
    """Read all documents of a bundle, in ordinal order."""
    dense = bundle.dense()
    with bundle.sparse() as index:
        for first in range(0, index.count, _READ):
            ordinals = np.arange(first, min(first + _READ, index.count))
            vectors, raws = dense.vectors(ordinals).tolist(), index.documents(ordinals)
            rows = index.rows(first, first + ordinals.size)
            for number, vector, row, raw in zip(ordinals.tolist(), vectors, rows, raws, strict=True):
                yield number, vector, {term: float(impact) for term, impact in row.items()}, raw


def term_numbers(bundle: Bundle) -> dict[str, int]:
    """Number the terms of a bundle's documents, for systems whose terms are numbers."""
    found = set[str]()
    with bundle.sparse() as index:
        for first in range(0, index.count, _READ):
            found.update(*index.rows(first, min(first + _READ, index.count)))
    return {term: number for number, term in enumerate(sorted(found))}


def by_number(sparse: Mapping[str, float], numbers: Mapping[str, int]) -> dict[int, float]:
    """Return weights by number of the term, ascending, without terms that no document has."""
    return dict(sorted((numbers[term], weight) for term, weight in sparse.items() if term in numbers))


def vectors_of(bundle: Bundle) -> Callable[[str], tuple[list[float], dict[str, float]]]:
    """Return what encodes a query as the service does: its dense vector of length D, and its weights by term."""
    task, tokenizer = bundle.manifest.default_task, bundle.tokenizer()
    encoder = QueryEncoder(tokenizer, {task: bundle.table(task)}, bundle.vocabulary(tokenizer), bundle.idf())

    def encode(query: str) -> tuple[list[float], dict[str, float]]:
        encoded = encoder.encode(query, task, StageClock())
        if encoded.dense is None:
            raise ValueError(f"no token of {query!r} has a vector")
        return encoded.dense.tolist(), dict(zip(encoded.terms, encoded.weights.tolist(), strict=True))

    return encode


def hit(rank: int, score: float, raw: str | bytes) -> dict[str, Any]:
    """Return a hit of the answer, from a document's JSON."""
    fields = orjson.loads(raw)
    return {"id": fields.pop("_id"), "rank": rank, "score": score, "fields": fields}


def _built(work: Path, bundle: Bundle, kind: str, build: Callable[[Path], object]) -> Path:
    """Return the bundle's folder of this kind in `work`; if it is missing, make it atomically with `build`."""
    folder = work / f"{kind}-{bundle.manifest.digest[:12]}"
    if not folder.is_dir():
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{kind}-", dir=work) as scratch:
            build(Path(scratch) / "new")
            (Path(scratch) / "new").rename(folder)
    return folder


def index_of(kind: str, write: Callable[[Bundle, Path], object]) -> Callable[[Bundle, Path], Path]:
    """Return a function that does `_built` for this kind by `write`, which gets the bundle and the folder to make."""
    return lambda bundle, work: _built(work, bundle, kind, partial(write, bundle))


def word_index(bundle: Bundle, work: Path) -> Path:
    """Return the folder in `work` of a Lucene index of the words of a bundle's documents; build it if it is missing."""

    def build(path: Path) -> None:
        with bundle.sparse() as index:
            build_word_index(path, index.ids(), document_texts(index))

    return _built(work, bundle, "words", build)
