"""A dense index, and vectors that are written behind it, searched as one.

The vectors that are written are kept in memory as float32. Up to some thousands all of them are scored. Of more, Faiss
scans 4-bit codes, as it does in a bundle of up to `SCAN_LIMIT` documents, and the best candidates are scored again.
Codes are learned from the vectors themselves, again whenever their number has doubled; the newest vectors have none.
"""

import math
from pathlib import Path
from typing import Final

import faiss
import numpy as np
import numpy.typing as npt
from lightretriever.artifacts import kernels
from lightretriever.artifacts.dense.build import product_parts
from lightretriever.artifacts.dense.index import DenseIndex, FaissIndex, inner_products
from lightretriever.artifacts.files.arrays import load_npy

__all__ = ["LaterIndex", "LaterIndexWriter"]

Bits = npt.NDArray[np.uint8]
Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
Ordinals = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.float32]

LEAST_CODED: Final = 2_048
"""So many vectors are scored about as fast as their codes are scanned; fewer have no codes."""

_UNCODED: Final = 512  # vectors behind the codes until all get codes
_TRAINING: Final = 2_048  # vectors that codes are learned from
_VECTORS, _CODES = "vectors.npy", "codes.faiss"
_DEEPER: Final = 3  # candidates by codes for each document that is wanted
_LEAST_DEEP: Final = 200  # of them at least


class LaterIndex:
    """The documents of an index, and behind them later ones, with the ordinals that follow. Thread-safe."""

    def __init__(self, first: DenseIndex, later: Vectors, codes: FaissIndex) -> None:
        """`later` (n, D) float32 are the vectors of the later documents; `codes` has those of the first of them, None
        for none."""
        self._first, self._later, self._codes = first, later, codes
        self.count = first.count + len(later)
        self.dimension, self.search_bytes = first.dimension, first.search_bytes

    def search(self, query: Vectors, k: int, first: Bits | None = None, later: Bits | None = None) -> Found:
        """The best documents, as `DenseIndex.search` gives them, of those whose bits are set: in `first` those of the
        index, in `later` those behind it, counted from 0; None for all. ValueError for a bad query or k."""
        ordinals, scores = self._first.search(query, k, first)
        if not len(self._later):
            return ordinals, scores
        behind, products = self._behind(np.ascontiguousarray(query, np.float32), k, later)
        both = np.concatenate([ordinals, behind + self._first.count])
        return kernels.best_first(both, np.concatenate([scores, products]), k)

    def scores(self, query: Vectors, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """The scores (m,) float32 of given documents (m,). ValueError for an unknown ordinal or a bad query."""
        later, scores = self._later_of(ordinals), np.empty(ordinals.size, np.float32)
        scores[~later] = self._first.scores(query, ordinals[~later])
        behind = ordinals[later] - self._first.count
        scores[later] = inner_products(self._later.__getitem__, np.ascontiguousarray(query, np.float32), behind)
        return scores

    def vectors(self, ordinals: Ordinals) -> Vectors:
        """The vectors (m, D) float32 of given documents (m,), as they are kept. ValueError for an unknown ordinal."""
        later, vectors = self._later_of(ordinals), np.empty((ordinals.size, self.dimension), np.float32)
        vectors[~later] = self._first.vectors(ordinals[~later])
        vectors[later] = self._later[ordinals[later] - self._first.count]
        return vectors

    def save(self, folder: Path) -> None:
        """Write the later vectors and their codes to files, for `LaterIndexWriter.load`. OSError, RuntimeError."""
        np.save(folder / _VECTORS, self._later)
        if self._codes is not None:
            faiss.write_index(self._codes, str(folder / _CODES))

    def _later_of(self, ordinals: Ordinals) -> npt.NDArray[np.bool_]:
        """Tell which documents (m,) are behind the index. ValueError for an unknown ordinal."""
        later = ordinals >= self._first.count
        if (ordinals >= self.count).any():
            raise ValueError(f"document {ordinals.max()} is outside 0..{self.count - 1}")
        return later

    def _behind(self, query: Vectors, k: int, among: Bits | None) -> Found:
        """Later documents that have the best `k` among them, counted from 0, and their scores."""
        count = len(self._later)
        chosen = None if among is None else np.unpackbits(among, count=count, bitorder="little").view(np.bool_)
        allowed = count if chosen is None else int(np.count_nonzero(chosen))
        deeper = max(_LEAST_DEEP, math.ceil(_DEEPER * min(k, allowed) * count / max(1, allowed)))
        if self._codes is not None and deeper < min(allowed, count // _DEEPER):
            faiss.omp_set_num_threads(1)  # holds for the calling thread only
            _, found = self._codes.search(query[None, :], min(deeper, self._codes.ntotal))
            coded = found[0][found[0] >= 0]
            coded, rest = (coded if chosen is None else coded[chosen[coded]]), self._codes.ntotal
            parts = [(coded, inner_products(self._later.__getitem__, query, coded)), self._from(rest, query, chosen)]
            if sum(len(part) for part, _ in parts) >= min(k, allowed):
                return np.concatenate([one for one, _ in parts]), np.concatenate([scores for _, scores in parts])
        if chosen is not None and _DEEPER * allowed < count:
            few = np.flatnonzero(chosen)
            return few, inner_products(self._later.__getitem__, query, few)
        return self._from(0, query, chosen)

    def _from(self, first: int, query: Vectors, chosen: npt.NDArray[np.bool_] | None) -> Found:
        """All later documents from one on, and their scores: in the order in which they lie, so that none is copied."""
        ordinals = np.arange(first, len(self._later))
        scores = inner_products(lambda part: self._later[part[0] : part[-1] + 1], query, ordinals)
        kept = slice(None) if chosen is None else chosen[first:]
        return ordinals[kept], scores[kept]


class LaterIndexWriter:
    """Writes vectors behind an index. One thread at a time adds, and one makes codes."""

    def __init__(self, first: DenseIndex) -> None:
        self._first = first
        self._vectors = np.empty((LEAST_CODED, first.dimension), np.float32)
        self._count = self._trained = 0
        self._codes: FaissIndex = None

    def load(self, folder: Path) -> None:
        """Add what `LaterIndex.save` wrote. OSError, ValueError or RuntimeError where it is missing or damaged."""
        self.add(load_npy(folder / _VECTORS))
        if (folder / _CODES).exists():
            self._codes = faiss.read_index(str(folder / _CODES))
            self._trained = self._codes.ntotal

    def add(self, vectors: Vectors) -> None:
        """Add vectors (n, D) float32 of length 1."""
        while self._count + len(vectors) > len(self._vectors):  # what was given out keeps the array before
            self._vectors = np.concatenate([self._vectors, np.empty_like(self._vectors)])
        self._vectors[self._count : self._count + len(vectors)] = vectors
        self._count += len(vectors)

    def behind(self) -> LaterIndex:
        """Give the documents of the index and those added up to now, as one index."""
        return LaterIndex(self._first, self._vectors[: self._count], self._codes)

    def encode(self) -> bool:
        """Make codes of vectors that have none, unless they are few; tell whether there are new codes for `behind`."""
        vectors, codes = self._vectors[: self._count], self._codes
        if len(vectors) < LEAST_CODED or (codes is not None and len(vectors) - codes.ntotal < _UNCODED):
            return False
        faiss.omp_set_num_threads(1)
        if len(vectors) >= 2 * self._trained:
            factory = f"PQ{product_parts(self._first.dimension)}x4fs"
            codes = faiss.index_factory(self._first.dimension, factory, faiss.METRIC_INNER_PRODUCT)
            codes.train(vectors[np.linspace(0, len(vectors) - 1, _TRAINING).astype(np.int64)])
            self._trained = len(vectors)
        else:
            codes = faiss.clone_index(codes)  # searches go on in the one that was given out
        codes.add(vectors[codes.ntotal :])
        self._codes = codes
        return True
