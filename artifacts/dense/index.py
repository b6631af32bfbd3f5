"""Searching the dense index: document vectors in Faiss, by inner product.

Document vectors are L2-normalised, so the inner product with a normalised query vector is their cosine.
Documents that a search did not find can be scored too (`DenseIndex.scores`), which is what lets fusion use a leg's true
score instead of a guess.
"""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Final, TypeAlias

import faiss
import numpy as np
import numpy.typing as npt
from lightretriever.artifacts import kernels
from lightretriever.artifacts.bundle.manifest import DenseInfo
from lightretriever.artifacts.dense.list_spread import ListSpreads, SearchedLists
from lightretriever.artifacts.errors import BundleError

__all__ = ["DenseIndex", "FaissIndex", "faiss_reason", "open_dense"]

FaissIndex: TypeAlias = Any  # faiss is wrapped by SWIG and has no types

_FEW: Final = 20_000
"""Up to so many documents are scored one by one, which is exact, instead of searching an index among them."""

_CHUNK: Final = 8192

_SPREAD: Final = 2.0
"""A list is judged by what lies so many standard deviations from its centre, towards the query."""


class DenseIndex:
    """A Faiss index on disk, memory-mapped: opening it takes milliseconds, processes share its pages.

    Searches use one thread each (Faiss keeps an OpenMP pool per calling thread, and a single query gains nothing
    from more); run several searches from several threads instead. Safe to use from any number of threads.
    """

    def __init__(self, index: FaissIndex, spreads: ListSpreads | None = None, *, taken: bool = False) -> None:
        """Search `index`, by the spreads of its lists if there are some; then these may be `taken` from it, into memory
        where they are found faster. BundleError where the spreads don't fit it."""
        self._index = index
        self.count: int = index.ntotal
        self.dimension: int = index.d
        self._exhaustive = isinstance(index, faiss.IndexFlat | faiss.IndexScalarQuantizer)
        self._coder, self._codes = _codes(index)
        if self._codes is not None and len(self._codes) != self.count:
            raise BundleError(
                f"the dense index says that it has {self.count} documents, but it has codes of {len(self._codes)}.",
                remedy="Fetch or build the bundle again.",
            )
        self._scored = _scored(self._coder, self._codes)
        # Candidates are scored here, which reads the next ones' codes ahead; Faiss waits for those of each.
        self._refines = isinstance(index, faiss.IndexRefine) and self._scored is not None
        self._proposing: FaissIndex = faiss.downcast_index(index.base_index) if self._refines else index
        self._searched: SearchedLists | None = None
        if spreads is not None:
            if not self._refines:
                raise BundleError(
                    "the dense index has spreads of its lists, but no 8-bit codes to score what is found in them.",
                    remedy="Fetch or build the bundle again.",
                )
            self._proposing, self._searched = spreads.searched(index, taken=taken)

    @classmethod
    def open(
        cls, path: Path, parameters: Mapping[str, float] | None = None, spreads: Path | None = None
    ) -> "DenseIndex":
        """Map the index `path` and set search `parameters` (names as in `artifacts.dense.tuning`).

        `spreads` is the file that says how the documents of its lists spread, if there is one. Raises BundleError when
        a file is missing, no Faiss index, not an inner product index, when it does not know a parameter, or when the
        spreads are not its own.
        """
        path = Path(path)
        if not path.is_file():
            raise BundleError(f"{path}: the file is missing.", remedy="Fetch or build the bundle again.")
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        except (RuntimeError, MemoryError) as error:
            raise BundleError(
                f"{path}: not a Faiss index: {faiss_reason(error)}.", remedy="Fetch or build the bundle again."
            ) from error
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise BundleError(
                f"{path}: Faiss metric {index.metric_type}, expected {faiss.METRIC_INNER_PRODUCT} (inner product).",
                remedy="Build the index again.",
            )
        for name, value in (parameters or {}).items():
            try:
                faiss.ParameterSpace().set_index_parameter(index, name, value)
            except RuntimeError as error:
                raise BundleError(
                    f'{path}: the index does not know the search parameter "{name}" (value {value:g}).',
                    remedy="Mend dense.parameters in manifest.json.",
                ) from error
        if spreads is None:
            return cls(index)
        read = ListSpreads.read(spreads)
        try:
            return cls(index, read, taken=True)
        except BundleError as error:
            raise BundleError(f"{spreads}: {error.message}", remedy=error.remedy) from error

    def search(
        self, query: npt.NDArray[np.float32], k: int, among: npt.NDArray[np.uint8] | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The best documents for a query vector, shape (D,): ordinals, int64 (m,), and scores, float32 (m,).

        With `among`, uint8 with a bit for every ordinal, the lowest first, only those whose bit is set. They are all
        scored where they are few or an approximate index does not reach `k` of them, so m = min(k, how many).

        Scores descend, equal scores by ordinal; m = min(k, N), or fewer where an approximate index reaches fewer.
        Which of several equal documents come last is by ordinal too where the index is exhaustive (Flat, SQ8).
        The scores are bit for bit those of `scores`, so that documents of two origins can be ranked together.
        Raises ValueError for k < 1 and for a query of another shape or with a value that is not finite.
        """
        query = self._checked(query)
        if k < 1:
            raise ValueError(f"k must be at least 1, found {k}")
        if among is None:
            return self._best(query, min(k, self.count), self.count, None)
        size = int(np.bitwise_count(among).sum())
        wanted = min(k, size)
        if size > _FEW:
            found = self._best(query, wanted, size, among)
            if found[0].size == wanted:
                return found
        ordinals = np.flatnonzero(np.unpackbits(among, count=self.count, bitorder="little"))
        return self._best_of(query, ordinals, wanted)

    def _best(
        self, query: npt.NDArray[np.float32], wanted: int, size: int, among: npt.NDArray[np.uint8] | None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Search the index, in which `size` documents may be found, for the best `wanted`."""
        most = max(wanted, int(wanted * self._index.k_factor)) if self._refines else wanted + self._exhaustive
        fetched = min(most, size)
        if self._searched is not None and self._scored is not None:
            probes = self._proposing.nprobe
            return self._searched.lists.search(query, wanted, fetched, probes, _SPREAD, among, self._scored)
        hits = self._found(query, wanted, fetched, size, among)
        return kernels.best_first(hits, self._scores(query, hits), wanted)

    def _found(
        self,
        query: npt.NDArray[np.float32],
        wanted: int,
        fetched: int,
        size: int,
        among: npt.NDArray[np.uint8] | None,
    ) -> npt.NDArray[np.int64]:
        """The ordinals of what Faiss finds, `fetched` at least, all documents that are as good as the last one wanted
        among them where the index is exhaustive."""
        faiss.omp_set_num_threads(1)  # holds for the calling thread only, hence at every call (0.1 µs)
        parameters = None if among is None else _restricted(self._proposing, among)
        while True:
            scores, ordinals = self._proposing.search(query[None, :], fetched, params=parameters)
            # Which of several equal documents make the last place is Faiss' whim: fetch until all of them are there.
            if fetched == size or not self._exhaustive or scores[0, wanted - 1] != scores[0, -1]:
                break
            fetched = min(2 * fetched, size)
        hits: npt.NDArray[np.int64] = ordinals[0]
        # fewer than were asked for
        return hits[hits >= 0] if hits.size and hits[-1] < 0 else hits

    def _best_of(
        self, query: npt.NDArray[np.float32], ordinals: npt.NDArray[np.int64], wanted: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The best `wanted` of given documents (n,), ascending, all of which are scored."""
        parts = [self._scores(query, ordinals[start : start + _CHUNK]) for start in range(0, ordinals.size, _CHUNK)]
        return kernels.best_first(ordinals, np.concatenate([np.empty(0, np.float32), *parts]), wanted)

    def scores(self, query: npt.NDArray[np.float32], ordinals: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """Inner products of a query vector, shape (D,), with given documents, shape (m,), float32 (m,).

        They are the very scores `search` gives these documents, and a document's score doesn't depend on the others.
        Raises ValueError for an ordinal outside 0..N-1 and for a bad query.
        """
        return self._scores(self._checked(query), np.ascontiguousarray(ordinals, dtype=np.int64))

    def _scores(self, query: npt.NDArray[np.float32], ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        if self._scored is not None:
            return self._scored.scores(query, ordinals)
        # Not `@`: BLAS wakes its thread pool for this, which costs far more than the sum, and its order of summation
        # depends on the number of rows.
        scores: npt.NDArray[np.float32] = np.einsum("md,d->m", self.vectors(ordinals), query)
        return scores

    def vectors(self, ordinals: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """The vectors of given documents as the index holds them (quantised, maybe), float32 (m, D).

        Raises ValueError for an ordinal outside 0..N-1.
        """
        outside = (ordinals < 0) | (ordinals >= self.count)
        if outside.any():
            raise ValueError(f"document {ordinals[outside][0]} is outside 0..{self.count - 1}")
        if ordinals.size == 0:
            return np.zeros((0, self.dimension), dtype=np.float32)
        faiss.omp_set_num_threads(1)
        vectors: npt.NDArray[np.float32]
        if self._codes is None:
            vectors = self._index.reconstruct_batch(ordinals.astype(np.int64))
        else:  # in one go, where Faiss goes document by document
            vectors = self._coder.sa_decode(self._codes.take(ordinals, axis=0))
        return vectors

    def _checked(self, query: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        if query.shape != (self.dimension,):
            raise ValueError(f"the query vector must have shape ({self.dimension},), found {query.shape}")
        query = np.ascontiguousarray(query, dtype=np.float32)
        if not isfinite(kernels.magnitude(query)):
            raise ValueError("the query vector holds a value that is not finite")
        return query


def open_dense(root: Path, info: DenseInfo, parameters: Mapping[str, float] | None = None) -> DenseIndex:
    """The dense index of the bundle in `root`, with its own search parameters or others. Raises BundleError."""
    spreads = None if info.spreads is None else root / info.spreads
    return DenseIndex.open(root / info.file, info.parameters if parameters is None else parameters, spreads)


def _restricted(index: FaissIndex, among: npt.NDArray[np.uint8]) -> Any:
    """Search parameters that let an index find only documents whose bit is set, and change nothing else."""
    swig: Any = faiss  # its type stubs lack most of these
    selector = swig.IDSelectorBitmap(among.size, swig.swig_ptr(among))
    if isinstance(index, faiss.IndexRefine):
        base = _restricted(faiss.downcast_index(index.base_index), among)
        return swig.IndexRefineSearchParameters(k_factor=index.k_factor, base_index_params=base)
    if isinstance(index, faiss.IndexPreTransform):
        base = _restricted(faiss.downcast_index(index.index), among)
        return swig.SearchParametersPreTransform(index_params=base)
    if isinstance(index, faiss.IndexIVF):
        return swig.SearchParametersIVF(sel=selector, nprobe=index.nprobe)
    if isinstance(index, faiss.IndexHNSW):
        return swig.SearchParametersHNSW(sel=selector, efSearch=index.hnsw.efSearch)
    return swig.SearchParameters(sel=selector)


def _codes(index: FaissIndex) -> tuple[FaissIndex, npt.NDArray[np.uint8] | None]:
    """The part of an index that holds a code per document, and these codes, (N, bytes); no codes where there is none.

    The codes are the index' own memory, and valid as long as it is.
    """
    if isinstance(index, faiss.IndexRefine):
        index = faiss.downcast_index(index.refine_index)
    elif isinstance(index, faiss.IndexHNSW):
        index = faiss.downcast_index(index.storage)
    if not isinstance(index, faiss.IndexFlatCodes) or index.ntotal == 0:
        return index, None
    codes = faiss.rev_swig_ptr(index.codes.data(), index.ntotal * index.code_size)
    return index, codes.reshape(index.ntotal, index.code_size)


def _scored(coder: FaissIndex, codes: npt.NDArray[np.uint8] | None) -> kernels.ByteCodes | None:
    """What scores documents by codes of a byte a number. None for other codes."""
    if codes is None or not isinstance(coder, faiss.IndexScalarQuantizer):
        return None
    if coder.sq.qtype != faiss.ScalarQuantizer.QT_8bit:
        return None
    low, span = faiss.vector_to_array(coder.sq.trained).reshape(2, coder.d).astype(np.float32)
    return kernels.ByteCodes(codes, low.copy(), span / np.float32(255))


def faiss_reason(error: BaseException) -> str:
    """The last, human part of a Faiss message, without its C++ signature."""
    return str(error).rpartition("Error: ")[2].strip().rstrip(".")
