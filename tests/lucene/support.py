"""What the Lucene tests share: a random collection of impacts, the plain numpy answer to a query, and a writer."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Collection:
    """Documents as a dense matrix of impacts (N, V) int64, and as what the writer takes."""

    matrix: Ints

    @property
    def ids(self) -> list[str]:
        return [f"doc-{i:05}" for i in range(len(self.matrix))]

    @property
    def documents(self) -> list[bytes]:
        return [f'{{"_id":"{name}","text":"text of {name}"}}'.encode() for name in self.ids]

    def rows(self, start: int, end: int) -> tuple[Ints, npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
        part = self.matrix[start:end]
        documents, terms = np.nonzero(part)
        indptr = np.searchsorted(documents, np.arange(end - start + 1)).astype(np.int64)
        return indptr, terms.astype(np.int32), part[documents, terms].astype(np.uint16)

    def write(self, path: Path, batch: int = 100) -> None:
        ids, documents = self.ids, self.documents
        with ImpactIndexWriter(path) as writer:
            for start in range(0, len(ids), batch):
                end = min(start + batch, len(ids))
                writer.add(ids[start:end], documents[start:end], *self.rows(start, end))

    def best(self, terms: npt.NDArray[np.int32], weights: Floats, k: int) -> tuple[Ints, Floats]:
        """What a search must give: scores of the documents that share a term, ties by ordinal.

        Products and sums are float32; what can add the most is added first, of equal terms the smaller one.
        """
        query = np.zeros(self.matrix.shape[1], np.float32)
        np.add.at(query, terms, weights)
        products = self.matrix.astype(np.float32) * query
        most = np.maximum(0, self.matrix.max(axis=0).astype(np.float32) * query)
        scores = np.zeros(len(self.matrix), np.float32)
        for term in np.argsort(-most, kind="stable"):
            scores += products[:, term]
        order = np.lexsort((np.arange(len(scores)), -scores))
        order = order[scores[order] > 0][:k]
        return order, scores[order]


def random_collection(count: int, vocabulary: int, seed: int, largest: int = 300) -> Collection:
    """About an eighth of the terms in each document; small impacts are common, so that ties are too."""
    random = np.random.default_rng(seed)
    impacts = 1 + (largest * random.random((count, vocabulary)) ** 4).astype(np.int64)
    return Collection(impacts * (random.random((count, vocabulary)) < 0.125))


def rows(*documents: dict[int, int]) -> tuple[Ints, npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The writer's arrays for documents given as {term: impact}."""
    indptr = np.cumsum([0, *(len(document) for document in documents)], dtype=np.int64)
    terms = np.array([term for document in documents for term in document], np.int32)
    impacts = np.array([impact for document in documents for impact in document.values()], np.int32)
    return indptr, terms, impacts


def query(counts: dict[int, float]) -> tuple[npt.NDArray[np.int32], Floats]:
    """Terms and weights for a search."""
    return np.array(list(counts), np.int32), np.array(list(counts.values()), np.float32)


def opened(path: Path, *documents: dict[int, int]) -> ImpactIndex:
    """An open index of documents named "0", "1", ..."""
    names = [str(i) for i in range(len(documents))]
    with ImpactIndexWriter(path) as writer:
        writer.add(names, [name.encode() for name in names], *rows(*documents))
    return ImpactIndex.open(path)
