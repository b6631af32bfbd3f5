"""Building the dense index: inner product, in a form that can also score documents a search did not find."""

import math
from pathlib import Path
from typing import Final

import faiss
import numpy as np

from lightretriever.artifacts.dense.index import DenseIndex, FaissIndex, faiss_reason, innermost, use_threads
from lightretriever.artifacts.dense.query_aware import (
    MIN_DIMENSION,
    build_query_aware_index,
    is_query_aware,
    parse_query_aware,
    query_aware_factory,
)
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import BundleError, RecipeError
from lightretriever.artifacts.progress import ProgressBar

__all__ = [
    "FLAT_LIMIT",
    "SCAN_LIMIT",
    "build_dense_index",
    "check_factory",
    "choose_factory",
    "factory_for",
    "lists_by_size",
    "product_parts",
    "write_dense_index",
]

# Up to FLAT_LIMIT documents an exact scan takes a fraction of a millisecond. Beyond, Faiss scans 4-bit product codes,
# and scores the best candidates again with 8-bit vectors: all codes up to SCAN_LIMIT documents, then those of inverted
# lists.
FLAT_LIMIT: Final = 5_000
SCAN_LIMIT: Final = 20_000

_EF_CONSTRUCTION: Final = 200  # Faiss's own 40 costs several points of recall at a million documents
_POINTS_PER_CENTROID: Final = 39  # below this Faiss itself warns of a poor clustering
_PROBES: Final = 16  # documents whose scores are compared between search and reconstruction after building
_SCORE_TOLERANCE: Final = 1e-3


def choose_factory(count: int, dimension: int) -> str:
    """The Faiss factory string for `count` documents of `dimension` values where there is no sample of queries.

    - up to 5,000: `Flat`, exact;
    - up to 20,000: `PQ{m}x4fs,Refine(SQ8)`, m as below;
    - more: `IVF{n},PQ{m}x4fsr,Refine(SQ8)`, n the power of two next to sqrt(count), m the largest divisor of
      `dimension` that leaves two or more values per sub-quantiser.
    """
    if count <= FLAT_LIMIT:
        return "Flat"
    if count <= SCAN_LIMIT:
        return f"PQ{product_parts(dimension)}x4fs,Refine(SQ8)"
    return f"IVF{lists_by_size(count)},PQ{product_parts(dimension)}x4fsr,Refine(SQ8)"


def product_parts(dimension: int) -> int:
    """The number of 4-bit sub-quantisers: the largest divisor of `dimension` that leaves each two or more values."""
    return max(m for m in range(1, max(dimension // 2, 1) + 1) if dimension % m == 0)


def factory_for(vectors: Float32Array, queries: Float32Array | None) -> str:
    """The factory string for document vectors (N, D): one laid out by queries (q, D) where there are some.

    Small corpora and vectors of few dimensions gain nothing from queries and get that of `choose_factory`.
    """
    count, dimension = vectors.shape
    if queries is None or not len(queries) or count <= SCAN_LIMIT or dimension < MIN_DIMENSION:
        return choose_factory(count, dimension)
    return query_aware_factory(vectors, queries, lists_by_size(count))


def lists_by_size(count: int) -> int:
    """The number of inverted lists for `count` documents: the power of two next to sqrt(count)."""
    return int(2 ** round(math.log2(math.sqrt(count))))


def check_factory(factory: str, dimension: int, documents: int | None = None) -> None:
    """Raise RecipeError for a factory string that can't index vectors of `dimension` values by inner product, or that
    needs more than so many `documents` to be trained."""
    if is_query_aware(factory):
        centroids, _ = parse_query_aware(factory, dimension)
    else:
        index = _new_index(dimension, factory)  # kept: Faiss frees it with what is in it
        core = innermost(index)
        pq = getattr(core, "pq", None)
        centroids = max(getattr(core, "nlist", 0), 0 if pq is None else pq.ksub)
    if documents is not None and documents < _POINTS_PER_CENTROID * centroids:
        raise RecipeError(
            f'Faiss factory "{factory}" has {centroids} centroids and needs at least '
            f"{_POINTS_PER_CENTROID * centroids} documents to train them, found {documents}.",
            remedy=f'Use fewer centroids, or "{choose_factory(documents, dimension)}".',
        )


def build_dense_index(
    vectors: Float32Array, factory: str | None = None, queries: Float32Array | None = None
) -> FaissIndex:
    """Build a Faiss index over document vectors, float32 (N, D), L2-normalised; they may be a memory map.

    `factory` is a factory string of Faiss or of `artifacts.dense.query_aware`; the latter needs `queries`, a sample of
    query vectors, float32 (q, D) of length 1. None chooses by size and by whether there are queries. The same vectors
    give the same bytes, whatever the number of threads.

    Raises RecipeError for a factory string that Faiss refuses, that needs more vectors, or whose scores can't be
    computed again.
    """
    factory = factory or factory_for(vectors, queries)
    check_factory(factory, vectors.shape[1], len(vectors))
    with ProgressBar("dense", total=len(vectors), unit="documents") as progress:
        try:
            index = _query_aware(vectors, queries, factory) if is_query_aware(factory) else _plain(vectors, factory)
        except RuntimeError as error:
            raise _refused(factory, error) from error
        progress.advance(len(vectors))
    threads = faiss.omp_get_max_threads()
    try:
        _check_scores(index, factory, vectors)
    finally:
        use_threads(threads)  # a search leaves one thread, too few for the next build
    return index


def _plain(vectors: Float32Array, factory: str) -> FaissIndex:
    index = _new_index(vectors.shape[1], factory)
    index.train(vectors)
    index.add(vectors)
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None and not isinstance(index, faiss.IndexRefine):
        ivf.make_direct_map()  # without it, vectors can't be looked up by document
    return index


def _query_aware(vectors: Float32Array, queries: Float32Array | None, factory: str) -> FaissIndex:
    if queries is None or not len(queries):
        raise RecipeError(
            f'The factory "{factory}" needs a sample of queries, and there is none.',
            remedy=f'Name one as index.queries, or use "{choose_factory(*vectors.shape)}".',
        )
    return build_query_aware_index(vectors, queries, factory)


def write_dense_index(index: FaissIndex, path: Path) -> None:
    """Write a Faiss index to a file. Raises BundleError when the file can't be written."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise BundleError(
            f"{path}: the index can't be written: {faiss_reason(error)}.", remedy="Look at free space and permissions."
        ) from error


def _new_index(dimension: int, factory: str) -> FaissIndex:
    try:
        index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise _refused(factory, error) from error
    graph = innermost(index)
    if isinstance(graph, faiss.IndexHNSW):
        graph.hnsw.efConstruction = _EF_CONSTRUCTION
    if index.metric_type != faiss.METRIC_INNER_PRODUCT:
        raise RecipeError(
            f'Faiss factory "{factory}" does not search by inner product.',
            remedy='Use another one, such as "HNSW32,SQ8".',
        )
    return index


def _check_scores(index: FaissIndex, factory: str, vectors: Float32Array) -> None:
    """Raise RecipeError when the vectors that the index holds don't give the scores of a search."""
    dense = DenseIndex(index)
    for row in np.linspace(0, len(vectors) - 1, num=min(_PROBES, len(vectors)), dtype=np.int64):
        query = np.asarray(vectors[row])
        try:
            # Faiss's own scores: `DenseIndex.search` has computed its scores again already.
            scores, ordinals = index.search(query[None, :], 10)
            found = scores[ordinals >= 0]
            again = dense.scores(query, ordinals[ordinals >= 0])
        except RuntimeError as error:
            raise _refused(factory, error) from error
        if np.abs(found - again).max(initial=0) > _SCORE_TOLERANCE:
            raise RecipeError(
                f'Faiss factory "{factory}" gives scores that are off by {np.abs(found - again).max():.3g} from the '
                f"vectors it holds, so documents found by the sparse leg only could not be scored.",
                remedy=f'Append a refinement: "{factory},Refine(SQ8)".',
            )


def _refused(factory: str, error: RuntimeError) -> RecipeError:
    return RecipeError(
        f'Faiss refuses the factory "{factory}": {faiss_reason(error)}.',
        remedy='Use another one, such as "Flat" or "HNSW32,SQ8".',
    )
