"""What every library in the comparison is made of, and what it answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import NoDirectionError, NoTokensError
from lightretriever.service.observability.metrics import StageClock
from research.servers.bundle_documents import built, query_encoder

__all__ = ["DEPTH", "Index", "Library", "Query", "Source", "encode"]

Row = dict[str, Any]
DEPTH: Final = 100
"""Documents that a search asks for."""
_CHUNK: Final = 16_384


@dataclass(frozen=True)
class Query:
    """A query as the service encodes it: terms (t,), weights (t,) float32, dense (D,) float32."""

    text: str
    terms: list[str]
    weights: npt.NDArray[np.float32]
    dense: npt.NDArray[np.float32]

    @classmethod
    def of(cls, row: Row) -> Self:
        """Read what `row` gave."""
        weights, dense = (np.array(row[name], np.float32) for name in ("weights", "dense"))
        return cls(row["text"], row["terms"], weights, dense)

    def row(self) -> Row:
        """Give it as JSON can hold it; `of` reads the same bits."""
        return {
            "text": self.text,
            "terms": self.terms,
            "weights": self.weights.tolist(),
            "dense": self.dense.tolist(),
        }


def encode(bundle: Bundle, texts: Sequence[str]) -> list[Query]:
    """Encode texts as the service does, without those that have nothing in one of the legs."""
    task, encoder = bundle.manifest.default_task, query_encoder(bundle)
    found = []
    for text in texts:
        try:
            one = encoder.encode(text, task, StageClock())
        except (NoTokensError, NoDirectionError):
            continue
        if one.dense is not None and one.terms:
            found.append(Query(text, one.terms, one.weights, one.dense))
    return found


@dataclass(frozen=True)
class Source:
    """The bundle, the folder for other libraries' indexes, and texts of queries to lay out a dense index by."""

    bundle: Bundle
    work: Path
    layout: Sequence[str] = ()

    def vectors(self) -> npt.NDArray[np.float32]:
        """Give the documents' vectors, (N, D), memory-mapped: as the bundle's dense index holds them, of length 1."""

        def write(folder: Path) -> None:
            dense = self.bundle.dense()
            rows = np.lib.format.open_memmap(folder / "vectors", "w+", np.float32, (dense.count, dense.dimension))
            for first in range(0, dense.count, _CHUNK):
                part = np.arange(first, min(first + _CHUNK, dense.count))
                found = dense.vectors(part)
                rows[part] = found / np.linalg.norm(found, axis=1, keepdims=True)

        vectors: npt.NDArray[np.float32] = np.load(self.built("vectors", write) / "vectors", mmap_mode="r")
        return vectors

    def built(self, kind: str, write: Callable[[Path], object]) -> Path:
        """Give the folder of this kind for this bundle; if it is missing, make it, with what `write` puts into it."""

        def build(folder: Path) -> None:
            folder.mkdir()
            write(folder)

        return built(self.work, self.bundle, kind, build)


@dataclass(frozen=True)
class Index:
    """An open index of the bundle's documents, searched on one thread. A document's number is its ordinal."""

    search: Callable[[Any], Any]
    """Search for the best 100 documents for a prepared query."""
    prepare: Callable[[Query], Any] = lambda query: query
    """Give a query in the library's own form."""
    numbers: Callable[[Any], list[int]] = lambda answer: np.asarray(answer).tolist()
    """Give the numbers of what `search` found, best first."""
    settings: Sequence[Row] = ({},)
    """Settings of a search to choose from."""
    set: Callable[[Row], object] = lambda setting: None
    """Search with one of `settings` from now on."""


@dataclass(frozen=True)
class Library:
    """A library: the distribution that has it, what opens its index, and builds it before if it is missing, and the
    settings of indexes to choose from, for numbers of documents and of dimensions."""

    package: str
    open: Callable[[Source, Row], Index]
    builds: Callable[[int, int], Sequence[Row]] = lambda documents, dimension: [{}]
