"""Which inverted lists to look into: how far the documents of each spread around its centre, and in which directions.

A query q' asks first for lists whose centre c has a large q'·c. But the best documents are far out in their lists: one
whose documents spread widely along q' holds better ones than its centre tells. With the covariance S of a list's
documents around its centre, lists are asked in the order of

    q'·c + spread * sqrt(q'ᵀ S q')

S is kept as its main directions, and one variance for all others. Both sides are mapped as in `artifacts.dense.query_aware`.
"""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from zipfile import BadZipFile

import faiss
import numpy as np
import numpy.typing as npt
from lightretriever.artifacts import kernels
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.files.page_cache import huge_memory

__all__ = ["ListSpreads", "SearchedLists", "lists_of", "measure_spreads", "spread_bytes"]

_DIRECTIONS: Final = 2
_MOST_PLACES: Final = 64
_MOST: Final = 127  # of an int8
_BLOCK: Final = 32  # documents whose codes stand together
_LINE: Final = 64  # bytes of the processor's caches
_FETCH: Final = "Fetch or build the bundle again."
_FORMS: Final = {
    "places": (np.int64, 1),
    "directions": (np.int8, 3),
    "scales": (np.float32, 1),
    "others": (np.float32, 1),
}

FaissIndex = Any  # faiss is wrapped by SWIG and has no types
Floats = npt.NDArray[np.float32]


class ListSpreads(NamedTuple):
    """How documents lie around the centres of L lists, in m dimensions.

    `places` (w,) int64: the dimensions that are looked at. `directions` (L, r, w) int8, times `scales` (L,) float32:
    the main directions in these, each as long as the standard deviation along it. `others` (L,) float32: the variance
    along any other direction.
    """

    places: npt.NDArray[np.int64]
    directions: npt.NDArray[np.int8]
    scales: Floats
    others: Floats

    def write(self, path: Path) -> None:
        """Write a file. DiskError when the disk does not take it."""
        with writing(path), path.open("wb") as file:
            np.savez(file, **self._asdict())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read such a file. BundleError when it is missing, or no such file."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as parts:
                read = {name: parts[name] for name in cls._fields}
        except (OSError, TypeError, ValueError, KeyError, EOFError, RuntimeError, MemoryError, BadZipFile) as error:
            raise BundleError(f"{path}: the spreads of the lists can't be read: {error}.", remedy=_FETCH) from error
        for name, (dtype, axes) in _FORMS.items():
            found = read[name]
            if found.dtype != dtype or found.ndim != axes or not found.flags.c_contiguous:
                raise BundleError(
                    f"{path}: {name} must be {np.dtype(dtype)} with {axes} axes in C order, found {found.dtype} of "
                    f"shape {found.shape}.",
                    remedy=_FETCH,
                )
        return cls(**read)

    def searched(self, index: FaissIndex, *, taken: bool = False) -> tuple[FaissIndex, "SearchedLists"]:
        """The inverted lists of an index as `artifacts.dense.query_aware` builds it, and what searches them by these spreads.

        The lists' codes stay where Faiss has them, and the index must outlive what searches it. Or they are `taken`
        from Faiss, which can't search them any more then. Raises BundleError when these are not the spreads of that
        index.
        """
        try:
            mapping, inverted = _parts(index)
            matrix = faiss.vector_to_array(mapping.A).reshape(mapping.d_out, mapping.d_in)
            centres = faiss.downcast_index(inverted.quantizer).reconstruct_n(0, inverted.nlist)
            product = inverted.pq
            codebooks = faiss.vector_to_array(product.centroids).reshape(product.M, product.ksub, product.dsub)
            places = _Places.of(inverted)
            memory = None
            if taken:
                places, memory = places.gathered()
                inverted.replace_invlists(None, False)
            lists = kernels.Lists(matrix, centres, codebooks, *self, places.codes, places.ordinals, places.sizes)
            return inverted, SearchedLists(lists, memory)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BundleError(f"the spreads of the lists don't fit the dense index: {error}.", remedy=_FETCH) from error


class SearchedLists(NamedTuple):
    """What searches lists, and the memory that they lie in, where that is not Faiss' own."""

    lists: kernels.Lists
    memory: npt.NDArray[np.uint8] | None


class _Places(NamedTuple):
    """Where the codes and the ordinals of lists lie in memory, how many bytes the codes take, and how many documents
    there are, (L,) each. An empty list lies anywhere."""

    codes: npt.NDArray[np.uint64]
    code_bytes: npt.NDArray[np.int64]
    ordinals: npt.NDArray[np.uint64]
    sizes: npt.NDArray[np.int64]

    @classmethod
    def of(cls, inverted: FaissIndex) -> Self:
        swig: Any = faiss  # its type stubs lack some of these
        held: Any = swig.downcast_InvertedLists(inverted.invlists)
        if not isinstance(held, swig.BlockInvertedLists):
            raise ValueError("its lists hold their codes one by one")
        expected = (_BLOCK, -(-inverted.pq.M // 2) * _BLOCK)  # two codes a byte
        if (held.n_per_block, held.block_size) != expected:
            raise ValueError(f"a block has {held.n_per_block} documents and {held.block_size} bytes, not {expected}")
        numbers = range(inverted.nlist)
        sizes = np.array([held.list_size(number) for number in numbers], dtype=np.int64)
        return cls(
            np.array([int(held.get_codes(number) or 0) for number in numbers], dtype=np.uint64),
            -(-sizes // held.n_per_block) * held.block_size,
            np.array([int(held.get_ids(number) or 0) for number in numbers], dtype=np.uint64),
            sizes,
        )

    def gathered(self) -> tuple[Self, npt.NDArray[np.uint8]]:
        """The same in one piece of memory, which is given, too: all codes, list by list, and all ordinals."""
        lengths = np.concatenate([self.code_bytes, 8 * self.sizes])
        ends = np.cumsum(lengths + -lengths % _LINE)
        memory = huge_memory(int(ends[-1]))
        base = memory.ctypes.data
        targets = (base + np.concatenate([[0], ends[:-1]])).astype(np.uint64)
        sources = np.concatenate([self.codes, self.ordinals])
        for target, source, length in zip(targets.tolist(), sources.tolist(), lengths.tolist(), strict=True):
            ctypes.memmove(target, source, length)
        count = len(self.sizes)
        return self._replace(codes=targets[:count].copy(), ordinals=targets[count:].copy()), memory


def _parts(index: FaissIndex) -> tuple[FaissIndex, FaissIndex]:
    """What maps queries, and the inverted lists. ValueError for another kind of index than our own."""
    if isinstance(index, faiss.IndexRefine):
        index = faiss.downcast_index(index.base_index)
        chain: Any = index.chain if isinstance(index, faiss.IndexPreTransform) else None
        if chain is not None and chain.size() == 1:
            mapping: Any = faiss.downcast_VectorTransform(chain.at(0))
            inverted: Any = faiss.downcast_index(index.index)
            if (
                isinstance(mapping, faiss.LinearTransform)
                and not mapping.have_bias
                and isinstance(inverted, faiss.IndexIVFPQFastScan)
                and inverted.metric_type == faiss.METRIC_INNER_PRODUCT
                and inverted.by_residual
                and inverted.bbs == _BLOCK
            ):
                return mapping, inverted
    raise ValueError("it is no index laid out by queries")


def spread_bytes(parts: int) -> int:
    """What is read of a list's directions to choose among lists, with so many codes per document."""
    return _DIRECTIONS * min(_MOST_PLACES, parts)


def lists_of(inverted: FaissIndex, count: int) -> npt.NDArray[np.int64]:
    """The list that each of an index' documents is in, (N,)."""
    found = np.zeros(count, dtype=np.int64)
    held = inverted.invlists
    for number in range(inverted.nlist):
        size = held.list_size(number)
        if size:
            found[faiss.rev_swig_ptr(held.get_ids(number), size)] = number
    return found


def measure_spreads(
    chunks: Iterable[Floats], lists: npt.NDArray[np.int64], centres: Floats, places: npt.NDArray[np.int64]
) -> ListSpreads:
    """The spreads of mapped documents, given in `chunks` (n, m), in their lists (N,) around centres (L, m).

    `places` are the dimensions to look at; most of what documents differ by should lie in them.
    """
    places = places[:_MOST_PLACES]
    count, width = len(centres), len(places)
    moments = np.zeros((count, width, width), dtype=np.float32)
    squares = np.zeros(count, dtype=np.float64)
    first = 0
    for chunk in chunks:
        theirs = lists[first : first + len(chunk)]
        first += len(chunk)
        differences = chunk - centres[theirs]
        squares += np.bincount(theirs, weights=(differences**2).sum(axis=1), minlength=count)
        order = np.argsort(theirs, kind="stable")
        sorted_differences = differences[order][:, places]
        bounds = np.searchsorted(theirs[order], np.arange(count + 1))
        for number in np.flatnonzero(np.diff(bounds)):
            part = sorted_differences[bounds[number] : bounds[number + 1]]
            moments[number] += part.T @ part
    sizes = np.maximum(np.bincount(lists, minlength=count), 1)
    variances, axes = np.linalg.eigh(moments / sizes[:, None, None])
    largest = np.maximum(variances[:, ::-1][:, :_DIRECTIONS], 0)
    main = axes[:, :, ::-1][:, :, :_DIRECTIONS].transpose(0, 2, 1) * np.sqrt(largest)[:, :, None]
    scales = np.abs(main).max(axis=(1, 2)) / _MOST
    rounded = np.rint(main / np.where(scales > 0, scales, 1)[:, None, None])
    others = (squares / sizes - largest.sum(axis=1)) / max(1, centres.shape[1] - largest.shape[1])
    return ListSpreads(
        places.astype(np.int64),
        np.ascontiguousarray(rounded, dtype=np.int8),
        scales.astype(np.float32),
        np.maximum(others, 0).astype(np.float32),
    )
