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
Vectors = npt.NDArray[np.float32]

LEAST_CODED: Final = 2_048
"""So many vectors are scored about as fast as their codes are scanned; fewer have no codes."""

_LEAST_NEW: Final = 512  # vectors get codes when they are so many
_SHARE: Final = 64  # and one in so many of those that have some
_TRAINING: Final = 2_048  # vectors that codes are learned from
_DEEPER: Final = 3  # candidates by codes for each document that is wanted
_LEAST_WANTED: Final = 70  # documents, so that the best few are among the candidates, and most searches end with these


class LaterIndex:
    """The documents of an index, and behind them later ones, with the ordinals that follow. Thread-safe."""

    def __init__(self, first: DenseIndex, vectors: Vectors, codes: FaissIndex, alive: Bits | None) -> None:
        """`vectors` (n, D) float32 are those of the later documents; `codes` is a Faiss index of the codes of as many
        as have some, from the first on, None for none; `alive` has the bits of all documents to be found, None for
        all."""
        self._first, self._later, self._codes, self._alive = first, vectors, codes, alive
        self.count = first.count + len(vectors)
        self.dimension, self.search_bytes = first.dimension, first.search_bytes

    def search(self, query: Vectors, k: int, among: Bits | None = None) -> tuple[Ordinals, npt.NDArray[np.float32]]:
        """The best documents, as `DenseIndex.search` gives them, of those `among`, which may lack the last ones'
        bits."""
        among = self._alive if among is None else among
        size, kept, first = self._first.count, np.ones(len(self._later), np.bool_), among
        if among is not None:
            flags = np.unpackbits(among[size // 8 :], bitorder="little")
            first = np.concatenate([among[: size // 8], np.packbits(flags[: size % 8], bitorder="little")])
            later = flags[size % 8 :][: len(kept)]
            kept[: len(later)], kept[len(later) :] = later, False
        before = self._first.search(query, k, first)
        query = np.ascontiguousarray(query, np.float32)
        wanted = max(_LEAST_WANTED, min(k, 2 * k * len(self._later) // self.count))
        while True:
            parts = self._candidates(query, wanted, kept)
            scores = [inner_products(self._rows, query, part) for part in parts]
            ordinals = [part + size for part in parts]
            best = kernels.best_first(np.concatenate([before[0], *ordinals]), np.concatenate([before[1], *scores]), k)
            if wanted >= k or np.count_nonzero(best[0] >= size) < wanted:
                return best
            wanted = k  # so many of them are among the best that more may be

    def scores(self, query: Vectors, ordinals: Ordinals) -> npt.NDArray[np.float32]:
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

    def _candidates(self, query: Vectors, wanted: int, kept: npt.NDArray[np.bool_]) -> list[Ordinals]:
        """Give the later documents to score, counted from 0, in ascending parts: nearly all of the best `wanted` of
        those `kept` (n,)."""
        size = 0 if self._codes is None else int(self._codes.ntotal)
        coded = int(np.count_nonzero(kept[:size]))
        if coded >= LEAST_CODED:
            faiss.omp_set_num_threads(1)
            _, found = self._codes.search(query[None, :], min(size, _DEEPER * wanted * size // coded))
            candidates = np.sort(found[0])
            candidates = candidates[kept[candidates]]
            if candidates.size >= min(wanted, coded):
                return [candidates, np.flatnonzero(kept[size:]) + size]
        return [np.flatnonzero(kept)]

    def _rows(self, places: Ordinals) -> Vectors:
        """Give later vectors (m, D) of ascending places (m,). Neighbours are not copied."""
        first, last = places[0], places[-1]
        return self._later[first : last + 1] if last - first == len(places) - 1 else self._later[places]


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
        if count < LEAST_CODED or count - coded < max(_LEAST_NEW, coded // _SHARE):
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
