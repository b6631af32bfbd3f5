"""Corpora of any size that search like a real one: drawn from a model fitted to an encoded corpus.

The fitted corpus is cut into clusters of its dense vectors (k-means). A synthetic document picks a cluster by its share
and draws both vectors from what was seen in it:

dense   the cluster's mean, plus a Gaussian along its main directions and a smaller one in all others, normalised
sparse  every term t with the probability that a document of the cluster has it; its impact is one of those that t had
        in the fitted corpus
text    the JSON of a fitted document of that cluster, under another id

So real queries meet posting lists of real lengths and impacts, terms that go together still do, and the two legs agree
about the subject. What is not kept: how a document's impacts depend on each other, subjects smaller than a cluster, and
terms that the fitted corpus does not have. Documents of a cluster are not neighbours in the index.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import faiss
import numpy as np
import numpy.typing as npt
import orjson

from artifacts.batches import EncodedBatch, dense_prefix, keep_top_terms

__all__ = ["Sample", "SyntheticCorpus"]

_CLUSTER_SIZE: Final = 20  # fitted documents per cluster, on average
_DIRECTIONS: Final = 16  # main directions of a cluster's vectors
_BATCH: Final = 4096

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Sample:
    """An encoded corpus in one piece: n documents.

    `documents`: their JSON. `dense` (n, D) float32 of length 1. `indptr` (n+1,) int64, `terms` (nnz,) int32 and
    `impacts` (nnz,) uint16: the sparse vectors in CSR form.
    """

    documents: list[bytes]
    dense: Floats
    indptr: npt.NDArray[np.int64]
    terms: npt.NDArray[np.int32]
    impacts: npt.NDArray[np.uint16]

    @classmethod
    def of(cls, batches: Sequence[EncodedBatch], dimension: int, top_k: int | None = None) -> Self:
        """Join batches, cut as a bundle of `dimension` and `top_k` would be."""
        kept = [keep_top_terms(batch, top_k) for batch in batches]
        counts = np.concatenate([np.diff(batch.indptr) for batch in kept])
        return cls(
            documents=[document for batch in kept for document in batch.documents],
            dense=np.concatenate([dense_prefix(batch, dimension, first=0) for batch in kept]),
            indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            terms=np.concatenate([batch.terms for batch in kept]).astype(np.int32),
            impacts=np.concatenate([batch.impacts for batch in kept]).astype(np.uint16),
        )


@dataclass(frozen=True)
class _Cluster:
    """mean (D,); axes (r, D), each as long as the standard deviation along it; rest: standard deviation elsewhere.

    terms (s,) int32 with their shares (s,) float32 of the cluster's documents. members: ordinals in the sample.
    """

    mean: Floats
    axes: Floats
    rest: float
    terms: npt.NDArray[np.int32]
    shares: Floats
    members: npt.NDArray[np.int64]


class SyntheticCorpus:
    """A model of an encoded corpus, from which documents are drawn; the same seed gives the same documents."""

    def __init__(self, sample: Sample, *, seed: int = 0, clusters: int | None = None) -> None:
        """Fit. `clusters` None: one per 20 documents. ValueError for a sample without documents."""
        if not sample.documents:
            raise ValueError("a model can't be fitted to no documents")
        self._sample = sample
        self._seed = seed
        count = clusters or max(1, len(sample.documents) // _CLUSTER_SIZE)
        labels = _assign(sample.dense, min(count, len(sample.documents)), seed)
        members = [np.flatnonzero(labels == label) for label in range(labels.max() + 1)]
        self._clusters = [_fit(sample, ordinals) for ordinals in members if ordinals.size]
        sizes = np.array([cluster.members.size for cluster in self._clusters], dtype=np.float64)
        self._weights = sizes / sizes.sum()
        order = np.argsort(sample.terms, kind="stable")
        self._impacts = sample.impacts[order]
        self._starts = np.searchsorted(sample.terms[order], np.arange(int(sample.terms.max(initial=0)) + 2))

    @property
    def clusters(self) -> int:
        """How many clusters there are."""
        return len(self._clusters)

    def draw(self, documents: int) -> Iterator[EncodedBatch]:
        """That many documents, named s0, s1, …, in batches."""
        generator = np.random.default_rng(self._seed)
        for first in range(0, documents, _BATCH):
            yield self._batch(generator, first, min(_BATCH, documents - first))

    def _batch(self, generator: np.random.Generator, first: int, size: int) -> EncodedBatch:
        labels = generator.choice(len(self._clusters), size=size, p=self._weights)
        dense = np.empty((size, self._sample.dense.shape[1]), dtype=np.float32)
        texts: list[bytes] = [b""] * size
        rows, terms = [], []
        for label in np.unique(labels):
            cluster, places = self._clusters[label], np.flatnonzero(labels == label)
            dense[places] = _vectors(generator, cluster, places.size)
            hit = generator.random((places.size, cluster.terms.size), dtype=np.float32) < cluster.shares
            row, column = hit.nonzero()
            rows.append(places[row])
            terms.append(cluster.terms[column])
            for place, member in zip(places, generator.choice(cluster.members, places.size), strict=True):
                document = orjson.loads(self._sample.documents[member])
                texts[place] = orjson.dumps({**document, "_id": f"s{first + place}"})
        row, term = np.concatenate(rows), np.concatenate(terms)
        order = np.lexsort((term, row))
        row, term = row[order], term[order]
        begin, end = self._starts[term], self._starts[term + 1]
        impacts = self._impacts[begin + (generator.random(term.size) * (end - begin)).astype(np.int64)]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=size))]).astype(np.int64)
        return EncodedBatch([f"s{first + place}" for place in range(size)], texts, dense, indptr, term, impacts)


def _assign(vectors: Floats, clusters: int, seed: int) -> npt.NDArray[np.int64]:
    """The cluster of every vector, (n,)."""
    kmeans = faiss.Kmeans(
        vectors.shape[1], clusters, niter=10, seed=seed + 1, spherical=True, min_points_per_centroid=1
    )
    kmeans.train(vectors)
    labels: npt.NDArray[np.int64] = kmeans.index.search(vectors, 1)[1][:, 0]
    return labels


def _fit(sample: Sample, members: npt.NDArray[np.int64]) -> _Cluster:
    vectors = sample.dense[members]
    mean = vectors.mean(axis=0)
    _, lengths, directions = np.linalg.svd(vectors - mean, full_matrices=False)
    deviations = lengths / np.sqrt(max(1, members.size - 1))
    kept = min(_DIRECTIONS, members.size // 2)  # of more, the small sample would know too much
    others = max(1, vectors.shape[1] - kept)
    rest = float(np.sqrt((deviations[kept:] ** 2).sum() / others))
    places = np.concatenate([np.arange(sample.indptr[one], sample.indptr[one + 1]) for one in members])
    terms, counts = np.unique(sample.terms[places], return_counts=True)
    axes = (directions[:kept] * deviations[:kept, None]).astype(np.float32)
    return _Cluster(mean, axes, rest, terms, (counts / members.size).astype(np.float32), members)


def _vectors(generator: np.random.Generator, cluster: _Cluster, count: int) -> Floats:
    """Dense vectors (count, D) float32 of length 1."""
    along = generator.standard_normal((count, len(cluster.axes)), dtype=np.float32) @ cluster.axes
    noise = generator.standard_normal((count, cluster.mean.size), dtype=np.float32) * np.float32(cluster.rest)
    drawn = cluster.mean + along + noise
    vectors: Floats = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return vectors
