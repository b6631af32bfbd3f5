"""A dense index, and vectors that are written behind it, searched as one.

The vectors that are written are kept in memory as float32. Up to some thousands all of them are scored; of more, 4-bit
codes are scanned and the best candidates scored. Codes are learned again whenever the vectors have doubled; the newest
have none.
"""

from collections.abc import Sequence
from typing import Final

import faiss
import numpy as np

from lightretriever.artifacts.dense.build import product_parts
from lightretriever.artifacts.dense.index import DenseIndex, FaissIndex, best_first, inner_products, use_threads
from lightretriever.artifacts.dtypes import Float32Array, Int64Array, UInt8Array

MIN_CODED: Final = 2_048  # vectors that are scored about as fast as their codes are scanned; fewer have no codes
_MIN_NEW: Final = 512  # vectors get codes when they are so many
_NEW_SHARE: Final = 32  # and one for so many that have some, as these are copied
_TRAINING: Final = 2_048  # vectors that codes are learned from
_DEEPER: Final = 3  # candidates by codes for each document that is wanted
_MIN_CANDIDATES: Final = 70  # documents; a search for fewer looks at as many candidates


class LaterIndex:
    """The documents of several indexes, with ordinals in this order. Thread-safe."""

    def __init__(self, parts: Sequence[DenseIndex], alive: UInt8Array | None = None) -> None:
        """`alive` has the bits of all documents to be found, None for all."""
        self._parts = parts
        *self._starts, self.count = (int(end) for end in np.cumsum([0, *(part.count for part in parts)]))
        self.dimension, self.search_bytes = parts[0].dimension, parts[0].search_bytes
        self._alive = np.packbits(np.ones(self.count, np.bool_), bitorder="little") if alive is None else alive
        self._of_alive = self._parted(self._alive)

    def search(self, query: Float32Array, k: int, allowed: UInt8Array | None = None) -> tuple[Int64Array, Float32Array]:
        """The best documents, as `DenseIndex.search` gives them, of those `allowed`."""
        chosen = self._of_alive if allowed is None or allowed is self._alive else self._parted(allowed)
        hits = [
            part.search(query, max(k, _MIN_CANDIDATES), bits) for part, bits in zip(self._parts, chosen, strict=True)
        ]
        ordinals = np.concatenate([local + start for (local, _), start in zip(hits, self._starts, strict=True)])
        return best_first(ordinals, np.concatenate([scores for _, scores in hits]), k)

    def nearest(self, query: Float32Array, k: int, allowed: UInt8Array | None = None) -> Int64Array:
        """The best documents alone."""
        return self.search(query, k, allowed)[0]

    def scores(self, query: Float32Array, ordinals: Int64Array) -> Float32Array:
        """The scores (m,) float32 of given documents (m,). ValueError for an unknown ordinal."""
        return inner_products(self.vectors, query, ordinals)

    def vectors(self, ordinals: Int64Array) -> Float32Array:
        """The vectors (m, D) float32 of given documents (m,), as they are kept. ValueError for an unknown ordinal."""
        vectors = np.empty((ordinals.size, self.dimension), np.float32)
        owners = np.searchsorted(self._starts[1:], ordinals, "right")
        for owner, (part, start) in enumerate(zip(self._parts, self._starts, strict=True)):
            vectors[owners == owner] = part.vectors(ordinals[owners == owner] - start)
        return vectors

    def _parted(self, allowed: UInt8Array) -> list[UInt8Array]:
        """The bits of each index's documents."""
        flags = np.unpackbits(allowed, count=self.count, bitorder="little")
        return [np.packbits(part, bitorder="little") for part in np.split(flags, self._starts[1:])]


class LaterIndexWriter:
    """Writes vectors behind an index. One thread at a time adds and calls `behind`, and one makes codes."""

    def __init__(self, first: DenseIndex) -> None:
        self._first = first
        self._new = np.empty((0, first.dimension), np.float32)
        self._coded: FaissIndex = faiss.IndexFlatIP(first.dimension)
        self._newest: FaissIndex = self._coded  # has more vectors, until `behind` takes it
        self._trained = 0

    def add(self, vectors: Float32Array) -> None:
        """Add vectors (n, D) float32 of length 1."""
        self._new = np.concatenate([self._new, vectors])

    def behind(self, alive: UInt8Array | None = None) -> LaterIndex:
        """Return the documents of the index and those added up to now, as one index, in which those of the bits `alive`
        are found."""
        if self._newest is not self._coded:
            self._new = self._new[self._newest.ntotal - self._coded.ntotal :]
            self._coded = self._newest
        new: FaissIndex = faiss.IndexFlatIP(self._first.dimension)
        new.add(self._new)
        return LaterIndex([self._first, *(DenseIndex(index) for index in (self._coded, new) if index.ntotal)], alive)

    def encode(self) -> bool:
        """Make codes of vectors that have none, unless they are few; tell whether there are new codes for `behind`."""
        index: FaissIndex = self._coded
        new, count = self._new, index.ntotal
        if self._newest is not index:
            return True
        if count + len(new) < MIN_CODED or len(new) < max(_MIN_NEW, count // _NEW_SHARE):
            return False
        use_threads(1)
        if count + len(new) < 2 * self._trained:
            index = faiss.clone_index(index)  # searches go on in the one that was given out
        else:
            new = np.concatenate([index.reconstruct_n(0, count), new])
            parts, self._trained = product_parts(self._first.dimension), len(new)
            index = faiss.index_factory(new.shape[1], f"PQ{parts}x4fs,RFlat", faiss.METRIC_INNER_PRODUCT)
            index.k_factor = _DEEPER
            index.train(new[np.linspace(0, len(new) - 1, _TRAINING).astype(np.int64)])
        index.add(new)
        self._newest = index
        return True
