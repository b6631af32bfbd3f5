"""A dense index, and vectors that are written behind it, searched as one.

The vectors that are written are kept in memory as float32. Up to some thousands all of them are scored. Of more, Faiss
scans 4-bit codes, as it does in a bundle of up to `SCAN_LIMIT` documents, and the best candidates are scored again.
Codes are learned from the vectors themselves, again whenever their number has doubled; the newest vectors have none.
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
Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
Ordinals = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

LEAST_CODED: Final = 2_048
"""So many vectors are scored about as fast as their codes are scanned; fewer have no codes."""

_BLOCK: Final = 512  # vectors get codes in multiples of so many
_SHARE: Final = 64  # and when they are one in so many of those that have some
_TRAINING: Final = 2_048  # vectors that codes are learned from
_DEEPER: Final = 3  # candidates by codes for each document that is wanted
_LEAST_WANTED: Final = 70  # documents, so that the best few are among the candidates, and most searches end with these


class LaterIndex:
    """The documents of an index, and behind them later ones, with the ordinals that follow. Thread-safe."""

    def __init__(self, first: DenseIndex, coded: DenseIndex | None, newest: Vectors) -> None:
        """The later documents are those of `coded`, in whole blocks of `_BLOCK`, and behind them those whose vectors
        (n, D) float32 are `newest`."""
        self._first, self._coded, self._newest = first, coded, newest
        self._of_coded = 0 if coded is None else coded.count
        self.count = first.count + self._of_coded + len(newest)
        self.dimension, self.search_bytes = first.dimension, first.search_bytes

    def search(self, query: Vectors, k: int, first: Bits | None = None, later: Bits | None = None) -> Found:
        """The best documents, as `DenseIndex.search` gives them, of those whose bits are set: in `first` those of the
        index, in `later` those behind it, counted from 0; None for all. ValueError for a bad query or k."""
        found = [self._first.search(query, k, first)]
        if self._coded is not None:
            among = None if later is None else later[: self._of_coded // 8]
            wanted = max(_LEAST_WANTED, min(k, 2 * k * self._of_coded // self.count))
            ordinals, scores = self._coded.search(query, wanted, among)
            before = found[0][1]
            if wanted < k and len(scores) == wanted and (len(before) < k or scores[-1] >= before[-1]):
                ordinals, scores = self._coded.search(query, k, among)  # more of them may be among the best
            found.append((ordinals + self._first.count, scores))
        if size := len(self._newest):
            kept = np.ones(size, np.bool_)
            if later is not None:
                kept = np.unpackbits(later[self._of_coded // 8 :], count=size, bitorder="little").view(np.bool_)
            query = np.ascontiguousarray(query, np.float32)
            # In the order in which they lie, so that none is copied.
            scores = inner_products(lambda part: self._newest[part[0] : part[-1] + 1], query, np.arange(size))
            found.append((np.flatnonzero(kept) + (self.count - size), scores[kept]))
        if len(found) == 1:
            return found[0]
        ordinals, scores = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return kernels.best_first(ordinals, scores, k)

    def scores(self, query: Vectors, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """The scores (m,) float32 of given documents (m,). ValueError for an unknown ordinal or a bad query."""
        return inner_products(self.vectors, np.ascontiguousarray(query, np.float32), ordinals)

    def vectors(self, ordinals: Ordinals) -> Vectors:
        """The vectors (m, D) float32 of given documents (m,), as they are kept. ValueError for an unknown ordinal."""
        if (ordinals >= self.count).any():
            raise ValueError(f"document {ordinals.max()} is outside 0..{self.count - 1}")
        behind, vectors = ordinals - self._first.count, np.empty((ordinals.size, self.dimension), np.float32)
        before, newest = behind < 0, behind >= self._of_coded
        vectors[before] = self._first.vectors(ordinals[before])
        vectors[newest] = self._newest[behind[newest] - self._of_coded]
        if self._coded is not None:
            coded = ~(before | newest)
            vectors[coded] = self._coded.vectors(behind[coded])
        return vectors


class LaterIndexWriter:
    """Writes vectors behind an index. One thread at a time adds and calls `behind`, and one makes codes."""

    def __init__(self, first: DenseIndex) -> None:
        self._first = first
        self._index: FaissIndex = None  # of those with codes
        self._coded: DenseIndex | None = None
        self._made: FaissIndex = None  # by `encode`, for the next `behind`
        self._trained = 0
        self._newest = np.empty((LEAST_CODED, first.dimension), np.float32)
        self._count = 0  # of the newest

    def add(self, vectors: Vectors) -> None:
        """Add vectors (n, D) float32 of length 1."""
        while self._count + len(vectors) > len(self._newest):  # what was given out keeps the array before
            self._newest = np.concatenate([self._newest, np.empty_like(self._newest)])
        self._newest[self._count : self._count + len(vectors)] = vectors
        self._count += len(vectors)

    def behind(self) -> LaterIndex:
        """Give the documents of the index and those added up to now, as one index."""
        if self._made is not None:
            coded = 0 if self._index is None else self._index.ntotal
            rest = self._newest[self._made.ntotal - coded : self._count]
            self._newest = np.concatenate([rest, np.empty((LEAST_CODED, self._first.dimension), np.float32)])
            self._count = len(rest)
            self._index, self._coded, self._made = self._made, DenseIndex(self._made), None
        return LaterIndex(self._first, self._coded, self._newest[: self._count])

    def encode(self) -> bool:
        """Make codes of vectors that have none, unless they are few; tell whether there are new codes for `behind`."""
        count, coded, size = self._count, self._coded, 0 if self._coded is None else self._coded.count
        new = self._newest[: count - count % _BLOCK]
        if size + count < LEAST_CODED or len(new) < max(_BLOCK, size // _SHARE):
            return False
        faiss.omp_set_num_threads(1)
        if self._index is None or size + len(new) >= 2 * self._trained:
            if coded is not None:
                new = np.concatenate([coded.vectors(np.arange(size)), new])
            parts = product_parts(self._first.dimension)
            made: FaissIndex = faiss.index_factory(
                self._first.dimension, f"PQ{parts}x4fs,RFlat", faiss.METRIC_INNER_PRODUCT
            )
            made.k_factor = _DEEPER
            made.train(new[np.linspace(0, len(new) - 1, _TRAINING).astype(np.int64)])
            self._trained = len(new)
        else:
            made = faiss.clone_index(self._index)  # searches go on in the one that was given out
        made.add(new)
        self._made = made
        return True
