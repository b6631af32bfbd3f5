"""Searching the dense index: L2-normalised document vectors in Faiss, by inner product.

The background of a bundle are vectors of documents from all over the corpus, which tell how good a best score is: with
the scores b of a query in the background, its best document, of score s, is (s - mean(b)) / std(b) deviations above the
corpus.
"""

import math
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from threading import local
from typing import Any, Final, TypeAlias

import faiss
import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, Int64Array, IntegerArray, UInt8Array
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.arrays import load_part

FaissIndex: TypeAlias = Any  # faiss is wrapped by SWIG and has no types

_FETCH: Final = "Fetch or build the bundle again."
_MAX_PARAMETER: Final = 10_000  # of a search, but lists to probe

_FEW: Final = 20_000  # allowed documents that are all scored, which is exact; among more, Faiss searches
_KEPT_ONE_OF: Final = 2  # a filter that keeps one document of so many is applied to what Faiss finds without it
_DEEPER: Final = 1.5  # times as many documents as are needed on average, so that enough of them match; fewer times and
_FEW_MORE: Final = 8  # some more where the filter leaves few out

_UNLIKE: Final = np.float32(-1)  # the least cosine
_CHUNK: Final = 8192  # documents decoded at a time


_calling = local()  # what Faiss was told for the calling thread


def use_threads(count: int) -> None:
    """Set the OpenMP threads that Faiss uses in the calling thread. It is told once: a call releases the GIL."""
    if getattr(_calling, "threads", 0) != count:
        faiss.omp_set_num_threads(count)
        _calling.threads = count


class DenseIndex:
    """A Faiss index on disk, memory-mapped, so that processes share its pages. A search runs on the calling thread
    alone: Faiss keeps an OpenMP pool per calling thread, and one query gains nothing from it. Thread-safe."""

    def __init__(self, index: FaissIndex) -> None:
        """Search an inner product index. Raises BundleError where it is of no kind that `artifacts.dense.build` makes,
        and where it holds codes of another number of documents."""
        self._index = index
        self.count: int = index.ntotal
        self.dimension: int = index.d
        self._exhaustive = isinstance(index, faiss.IndexFlat)
        self._coder = faiss.downcast_index(index.refine_index) if isinstance(index, faiss.IndexRefine) else index
        self._scans_codes = isinstance(innermost(index), faiss.IndexPQFastScan)  # which takes no filter
        known = isinstance(innermost(index), faiss.IndexFlat | faiss.IndexPQFastScan | faiss.IndexIVFPQFastScan)
        if not (known and isinstance(self._coder, faiss.IndexFlatCodes)):
            raise BundleError(
                f"the dense index is of a kind that isn't searched: {type(innermost(index)).__name__}.",
                remedy="Build the bundle again.",
            )
        self._codes = _codes(self._coder)
        if len(self._codes) != self.count:
            raise BundleError(
                f"the dense index says that it has {self.count} documents, but it has codes of {len(self._codes)}.",
                remedy=_FETCH,
            )

    @classmethod
    def open(cls, path: Path, parameters: Mapping[str, float] | None = None) -> "DenseIndex":
        """Map the index `path` and set search `parameters` (Faiss's names, see `artifacts.dense.build`).

        Raises BundleError when the file is missing, is no Faiss index or none by inner product, or when the index does
        not know a parameter.
        """
        path = Path(path)
        if not path.is_file():
            raise BundleError(f"{path}: the file is missing.", remedy=_FETCH)
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except (RuntimeError, MemoryError) as error:
            raise BundleError(f"{path}: not a Faiss index: {faiss_reason(error)}.", remedy=_FETCH) from error
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise BundleError(
                f"{path}: Faiss metric {index.metric_type}, expected {faiss.METRIC_INNER_PRODUCT} (inner product).",
                remedy="Build the index again.",
            )
        parameters, lists = parameters or {}, getattr(innermost(index), "nlist", inf)
        for name, value in parameters.items():
            most = lists if name == "nprobe" else _MAX_PARAMETER  # Faiss would answer anything
            if not 0 < value <= most:
                raise BundleError(
                    f'{path}: the search parameter "{name}" is {value:g}, expected a number above 0, up to {most:g}.',
                    remedy="Mend dense.parameters in manifest.json.",
                )
            try:
                faiss.ParameterSpace().set_index_parameter(index, name, value)
            except RuntimeError as error:
                raise BundleError(
                    f'{path}: the index does not know the search parameter "{name}" (value {value:g}).',
                    remedy="Mend dense.parameters in manifest.json.",
                ) from error
        return cls(index)

    @property
    def search_bytes(self) -> int:
        """About how many bytes of the index a search reads: of lists, the share that it looks into; else all."""
        inner = innermost(self._index)
        size = int(inner.ntotal) * int(getattr(inner, "code_size", 4 * self.dimension))
        return size if not isinstance(inner, faiss.IndexIVF) else size * inner.nprobe // max(1, inner.nlist)

    def search(self, query: Float32Array, k: int, allowed: UInt8Array | None = None) -> tuple[Int64Array, Float32Array]:
        """The best documents for a query vector, shape (D,): ordinals, int64 (m,), and scores, float32 (m,).

        Scores descend, equal scores by ordinal, and are bit for bit those of `scores`; m = min(k, N), or fewer where an
        approximate index reaches fewer. `allowed`, uint8 with one bit per ordinal (lowest bit first), restricts it to
        documents whose bit is set; m = min(k, their number) where fewer than half are allowed. `Flat` also picks by
        ordinal among equal documents in the last places.
        """
        ordinals = self.nearest(query, k, allowed)
        return best_first(ordinals, self.scores(query, ordinals), k)

    def nearest(self, query: Float32Array, k: int, allowed: UInt8Array | None = None) -> Int64Array:
        """The documents, int64 (m,), that `search` scores and picks the best `k` from, in no order."""
        count = self.count if allowed is None else int(np.bitwise_count(allowed).sum())
        if allowed is None or count == self.count:
            return self._fetch(query, min(k, self.count), self.count, None)
        wanted = min(k, count)
        if _KEPT_ONE_OF * count >= self.count:  # most are allowed: Faiss scans fastest without a selector
            share = count / self.count
            deeper = min(self.count, math.ceil(min(_DEEPER, 3 - 2 * share) * wanted / share) + _FEW_MORE)
            ordinals = self._fetch(query, deeper, self.count, None)
            ordinals = np.compress((allowed[ordinals >> 3] >> (ordinals & 7)) & 1 == 1, ordinals)
            if ordinals.size >= wanted:
                return ordinals
        if count > _FEW and not self._scans_codes:
            ordinals = self._fetch(query, wanted, count, allowed)
            if ordinals.size >= wanted:
                return ordinals
        every: Int64Array = np.flatnonzero(np.unpackbits(allowed, count=self.count, bitorder="little"))
        return every

    def scores(self, query: Float32Array, ordinals: IntegerArray) -> Float32Array:
        """Inner products of a query vector (D,) with given documents (m,), float32 (m,). None depends on the other
        documents. Raises ValueError for an ordinal outside 0..N-1."""
        return inner_products(self.vectors, query, np.asarray(ordinals, dtype=np.int64))

    def _fetch(self, query: Float32Array, wanted: int, count: int, allowed: UInt8Array | None) -> Int64Array:
        """Ordinals that Faiss finds: `wanted` of `count` allowed, fewer if it reaches fewer, more if ties go on."""
        use_threads(1)
        parameters = None if allowed is None else _restricted(self._index, allowed)
        fetched = min(wanted + self._exhaustive, count)
        while True:
            scores, ordinals = self._index.search(query[None, :], fetched, params=parameters)
            # Faiss picks arbitrarily among equal documents, so all of them are fetched and the ordinal decides.
            if fetched == count or not self._exhaustive or scores[0, wanted - 1] != scores[0, -1]:
                break
            fetched = min(2 * fetched, count)
        least = scores[0, wanted - 1] if self._exhaustive else -inf
        best: Int64Array = ordinals[0, (scores[0] >= least) & (ordinals[0] >= 0)]  # Faiss pads with -1
        return best

    def vectors(self, ordinals: IntegerArray) -> Float32Array:
        """The vectors of given documents as the index holds them, quantised or not, float32 (m, D). Raises ValueError
        for an ordinal outside 0..N-1."""
        outside = (ordinals < 0) | (ordinals >= self.count)
        if outside.any():
            raise ValueError(f"document {ordinals[outside][0]} is outside 0..{self.count - 1}")
        if ordinals.size == 0:
            return np.zeros((0, self.dimension), dtype=np.float32)
        use_threads(1)
        # A fifth of the time of `reconstruct_batch`, which decodes one document at a time.
        vectors: Float32Array = self._coder.sa_decode(self._codes.take(ordinals, axis=0))
        return vectors


def best_first(ordinals: Int64Array, scores: Float32Array, count: int) -> tuple[Int64Array, Float32Array]:
    """The best `count` of documents (m,) and their scores, by score, ties by ordinal. ValueError for a NaN score."""
    if np.isnan(scores).any():
        raise ValueError(f"document {ordinals[np.isnan(scores)][0]} has a score that is no number")
    if count < len(scores):  # all with the score of the last place, too, as the ordinal decides between them
        least = np.partition(scores, len(scores) - count)[len(scores) - count] if count else inf
        kept = scores >= least
        ordinals, scores = ordinals[kept], scores[kept]
    order = np.lexsort((ordinals, -scores))[:count]
    return ordinals[order], scores[order]


def inner_products(
    vectors: Callable[[Int64Array], Float32Array], query: Float32Array, ordinals: Int64Array
) -> Float32Array:
    """Inner products (m,) float32 of a query vector (D,) with those of the documents (m,), which `vectors` gives. None
    depends on the other documents."""
    scores = np.empty(ordinals.size, np.float32)
    for start in range(0, ordinals.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        scores[part] = products(vectors(ordinals[part]), query)
    return scores


def products(vectors: Float32Array, query: Float32Array) -> Float32Array:
    """Inner products (m,) float32 of vectors (m, D) with a query vector (D,). None depends on the other vectors."""
    # Not `@`: BLAS wakes its thread pool for this, and its order of summation depends on the number of rows.
    scores: Float32Array = np.einsum("md,d->m", vectors, query)
    # Of a vector that is not finite, which nothing here writes: it is like no query.
    scores[~np.isfinite(scores)] = _UNLIKE
    return scores


def _restricted(index: FaissIndex, allowed: UInt8Array) -> Any:
    """Search parameters that restrict an index to documents whose bit is set and keep its other settings."""
    swig: Any = faiss  # its type stubs lack most of these
    selector = swig.IDSelectorBitmap(allowed.size, swig.swig_ptr(allowed))
    if isinstance(index, faiss.IndexRefine):
        base = _restricted(faiss.downcast_index(index.base_index), allowed)
        return swig.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=base)
    if isinstance(index, faiss.IndexPreTransform):
        base = _restricted(faiss.downcast_index(index.index), allowed)
        return swig.SearchParametersPreTransform(index_params=base)
    if isinstance(index, faiss.IndexIVF):
        return swig.SearchParametersIVF(sel=selector, nprobe=index.nprobe)
    return swig.SearchParameters(sel=selector)


def _codes(index: FaissIndex) -> UInt8Array:
    """A view of the codes of an index, uint8 (N, bytes), which is valid as long as the index is open."""
    if index.ntotal == 0:
        return np.zeros((0, index.code_size), np.uint8)
    codes = faiss.rev_swig_ptr(index.codes.data(), index.ntotal * index.code_size)
    return codes.reshape(index.ntotal, index.code_size)


def innermost(index: FaissIndex) -> FaissIndex:
    """The index below refinement and transformations."""
    while isinstance(index, faiss.IndexRefine | faiss.IndexPreTransform):
        inner = index.base_index if isinstance(index, faiss.IndexRefine) else index.index
        index = faiss.downcast_index(inner)
    return index


def faiss_reason(error: BaseException) -> str:
    """The last, human part of a Faiss message, without its C++ signature."""
    return str(error).rpartition("Error: ")[2].strip().rstrip(".")


BACKGROUND_FILE: Final = "background.npy"
_MAX_DOCUMENTS: Final = 256
_TOLERANCE: Final = 1e-3


def background_ordinals(documents: int) -> Int64Array:
    """Return the ordinals (b,) int64 of the background of a corpus: b = min(documents, 256), evenly spaced."""
    count = min(documents, _MAX_DOCUMENTS)
    return np.arange(count, dtype=np.int64) * documents // count


def load_background(path: Path, dimension: int) -> Float32Array:
    """Read the vectors (b, D) float32. Raises BundleError for another shape or type, and for lengths other than 1."""
    vectors: Float32Array = load_part(path, _FETCH)
    if vectors.dtype != np.float32 or vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != dimension:
        form = f"{vectors.dtype.name} of shape {vectors.shape}"
        raise BundleError(f"{path}: {form} instead of float32 of shape (b, {dimension}).", remedy=_FETCH)
    lengths = np.sqrt(np.einsum("bd,bd->b", vectors, vectors))
    if (bad := np.flatnonzero(~(np.abs(lengths - 1) < _TOLERANCE))).size:
        raise BundleError(f"{path}: vector {bad[0]} has the length {lengths[bad[0]]:g} instead of 1.", remedy=_FETCH)
    return vectors
