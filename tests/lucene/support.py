"""What the Lucene tests share: random impacts, the plain numpy answer to a query, a writer, an index by numbers."""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

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

    def opened(self, path: Path) -> ImpactIndex:
        """An open index of the documents."""
        self.write(path, batch=4096)
        return ImpactIndex.open(path)

    def scores(self, terms: npt.NDArray[np.int32], weights: Floats) -> Floats:
        """The score (N,) of every document, as the module `artifacts.sparse.index` defines it."""
        query = np.zeros(max(self.matrix.shape[1], 1 + terms.max(initial=0)), np.float32)
        np.add.at(query, terms, weights)
        query = cut(query, int(np.count_nonzero(query)))[: self.matrix.shape[1]]
        products = (self.matrix.astype(np.float32) * query).astype(np.float64)
        scores: Floats = products.sum(axis=1).astype(np.float32)
        return scores

    def best(self, terms: npt.NDArray[np.int32], weights: Floats, k: int) -> tuple[Ints, Floats]:
        """What a search must give: scores of the documents that share a term, ties by ordinal.

        Products are float32, and added up in double.
        """
        scores = self.scores(terms, weights)
        order = np.lexsort((np.arange(len(scores)), -scores))
        order = order[scores[order] > 0][:k]
        return order, scores[order]


def cut(weights: Floats, terms: int) -> Floats:
    """Weights as multiples of the power of two that lets a double hold every sum of `terms` products with impacts."""
    bits = int(np.ceil(np.log2(max(1, terms))))
    unit = 2.0 ** (int(np.frexp(weights.max())[1]) + 16 + bits - 53)
    return (np.trunc(weights.astype(np.float64) / unit) * unit).astype(np.float32)


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


def named(terms: npt.NDArray[Any]) -> list[str]:
    """Terms as Lucene's index has them."""
    return [str(term) for term in terms.tolist()]


def named_query(counts: dict[int, float]) -> tuple[list[str], Floats]:
    """Terms and weights for a search in Lucene's index."""
    terms, weights = query(counts)
    return named(terms), weights


def search(index: ImpactIndex, terms: list[str], weights: Floats, k: int, seconds: float = inf) -> tuple[Ints, Floats]:
    """The best documents of an index, ordinals and scores."""
    hits = index.find((terms, weights), k, np.empty(0, np.int64), seconds=seconds)
    return hits.ordinals, hits.scores


def opened(path: Path, *documents: dict[int, int]) -> ImpactIndex:
    """An open index of documents named "0", "1", ..."""
    names = [str(i) for i in range(len(documents))]
    with ImpactIndexWriter(path) as writer:
        writer.add(names, [name.encode() for name in names], *rows(*documents))
    return ImpactIndex.open(path)
