"""A dense index, and vectors that are written behind it, searched as one.

The vectors that are written are kept in memory as float32. Up to some thousands all of them are scored. Of more, Faiss
scans 4-bit codes, as it does in a bundle of up to `SCAN_LIMIT` documents, and the best candidates are scored. Codes are
learned from the vectors themselves, again whenever their number has doubled; the newest vectors have none.
"""

from typing import Final

import faiss
import numpy as np
import numpy.typing as npt
from lightretriever.artifacts import kernels
from lightretriever.artifacts.dense.build import product_parts
from lightretriever.artifacts.dense.index import DenseIndex, FaissIndex, inner_products

__all__ = ["LaterIndex", "LaterIndexWriter"]

Bits = npt.NDArray[np.uint8]
Ordinals = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.float32]

LEAST_CODED: Final = 2_048
"""So many vectors are scored about as fast as their codes are scanned; fewer have no codes."""

_LEAST_NEW: Final = 512  # vectors get codes when they are so many
_TRAINING: Final = 2_048  # vectors that codes are learned from
_DEEPER: Final = 3  # candidates by codes for each document that is wanted
_LEAST_WANTED: Final = 70  # documents; a search for fewer looks at as many candidates


class LaterIndex:
    """The documents of an index, and behind them later ones, with the ordinals that follow. Thread-safe."""

    def __init__(self, first: DenseIndex, vectors: Vectors, codes: FaissIndex, alive: Bits | None) -> None:
        """`vectors` (n, D) float32 are those of the later documents; `codes` is a Faiss index of the codes of as many
        as have some, from the first on, None for none; `alive` has the bits of all documents to be found, None for
        all."""
        self._first, self._later, self._codes = first, vectors, codes
        self._coded = 0 if codes is None else int(codes.ntotal)
        self.count = first.count + len(vectors)
        self.dimension, self.search_bytes = first.dimension, first.search_bytes
        self._alive = np.packbits(np.ones(self.count, np.bool_), bitorder="little") if alive is None else alive
        self._of_alive = self._parted(self._alive)

    def search(self, query: Vectors, k: int, among: Bits | None = None) -> tuple[Ordinals, Scores]:
        """The best documents, as `DenseIndex.search` gives them, of those `among`, which may lack the last ones'
        bits."""
        first, later = self._of_alive if among is None or among is self._alive else self._parted(among)
        query = np.ascontiguousarray(query, np.float32)
        parts = [self._first.search(query, k, first), self._best_coded(query, k, later), self._newest(query, later)]
        ordinals, scores = (np.concatenate(part) for part in zip(*parts, strict=True))
        return kernels.best_first(ordinals, scores, k)

    def scores(self, query: Vectors, ordinals: Ordinals) -> Scores:
        """The scores (m,) float32 of given documents (m,). ValueError for an unknown ordinal or a bad query."""
        return inner_products(self.vectors, np.ascontiguousarray(query, np.float32), ordinals)

    def vectors(self, ordinals: Ordinals) -> Vectors:
        """The vectors (m, D) float32 of given documents (m,), as they are kept. ValueError for an unknown ordinal."""
        if (ordinals >= self.count).any():
            raise ValueError(f"document {ordinals.max()} is outside 0..{self.count - 1}")
        vectors, later = np.empty((ordinals.size, self.dimension), np.float32), ordinals >= self._first.count
        vectors[~later] = self._first.vectors(ordinals[~later])
        vectors[later] = self._later[ordinals[later] - self._first.count]
        return vectors

    def _parted(self, among: Bits) -> tuple[Bits, npt.NDArray[np.bool_]]:
        """Give the bits of the index's documents, and for each later one (n,) whether it is among these."""
        flags = np.unpackbits(among, count=self.count, bitorder="little").view(np.bool_)
        return np.packbits(flags[: self._first.count], bitorder="little"), flags[self._first.count :]

    def _best_coded(self, query: Vectors, k: int, later: npt.NDArray[np.bool_]) -> tuple[Ordinals, Scores]:
        """Give ordinals (m,) int64 and scores (m,) float32 of the `later` documents (n,) that have codes: nearly all of
        the best `k`, and further candidates."""
        coded = later[: self._coded]
        most = int(np.count_nonzero(coded))
        found = np.empty(0, np.int64)
        if most >= LEAST_CODED:
            faiss.omp_set_num_threads(1)
            deep = _DEEPER * max(k, _LEAST_WANTED)
            _, ordinals = self._codes.search(query[None, :], min(coded.size, deep * coded.size // most))
            found = ordinals[0][coded[ordinals[0]]]
        if found.size < min(k, most):
            found = np.flatnonzero(coded)
        return found + self._first.count, inner_products(self._later.__getitem__, query, found)

    def _newest(self, query: Vectors, later: npt.NDArray[np.bool_]) -> tuple[Ordinals, Scores]:
        """Give ordinals (m,) int64 and scores (m,) float32 of the `later` documents (n,) that have no codes. All are
        scored, as neighbours, which need no copy."""
        new = np.arange(self._coded, len(later))
        scores = inner_products(lambda part: self._later[part[0] : part[-1] + 1], query, new)
        return new[later[new]] + self._first.count, scores[later[new]]


class LaterIndexWriter:
    """Writes vectors behind an index. One thread at a time adds and calls `behind`, and one makes codes."""

    def __init__(self, first: DenseIndex) -> None:
        self._first = first
        self._vectors = np.empty((LEAST_CODED, first.dimension), np.float32)
        self._count = 0
        self._codes: FaissIndex = None
        self._trained = 0

    def add(self, vectors: Vectors) -> None:
        """Add vectors (n, D) float32 of length 1."""
        while self._count + len(vectors) > len(self._vectors):  # what was given out keeps the array before
            self._vectors = np.concatenate([self._vectors, np.empty_like(self._vectors)])
        self._vectors[self._count : self._count + len(vectors)] = vectors
        self._count += len(vectors)

    def behind(self, alive: Bits | None = None) -> LaterIndex:
        """Give the documents of the index and those added up to now, as one index, in which those of the bits `alive`
        are found."""
        return LaterIndex(self._first, self._vectors[: self._count], self._codes, alive)

    def encode(self) -> bool:
        """Make codes of vectors that have none, unless they are few; tell whether there are new codes for `behind`."""
        count, coded = self._count, 0 if self._codes is None else self._codes.ntotal
        vectors = self._vectors[:count]
        if count < LEAST_CODED or count - coded < _LEAST_NEW:
            return False
        faiss.omp_set_num_threads(1)
        if count >= 2 * self._trained:
            parts = product_parts(self._first.dimension)
            codes: FaissIndex = faiss.index_factory(self._first.dimension, f"PQ{parts}x4fs", faiss.METRIC_INNER_PRODUCT)
            codes.train(vectors[np.linspace(0, count - 1, _TRAINING).astype(np.int64)])
            self._trained, coded = count, 0
        else:
            codes = faiss.clone_index(self._codes)  # searches go on in the one that was given out
        codes.add(vectors[coded:])
        self._codes = codes
        return True
