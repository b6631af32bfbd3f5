"""Building the dense index, and measuring its search parameters: the cheapest that find nearly all that an exact search
finds, for a sample of queries or queries made of documents.
"""

import math
import os
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial
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

FLAT_LIMIT: Final = 5_000  # documents of which an exact scan takes a fraction of a millisecond
SCAN_LIMIT: Final = 20_000  # documents whose 4-bit codes are all scanned; of more, those of some inverted lists

_EF_CONSTRUCTION: Final = 200  # Faiss's own 40 costs several points of recall at a million documents
_POINTS_PER_CENTROID: Final = 39  # below this Faiss itself warns of a poor clustering
_PROBES: Final = 16  # documents whose scores are compared between search and reconstruction after building
_SCORE_TOLERANCE: Final = 1e-3


def choose_factory(count: int, dimension: int) -> str:
    """Return the Faiss factory string for `count` documents of `dimension` values where there is no sample of queries.

    Up to 5,000 documents: `Flat`; up to 20,000: `PQ{m}x4fs,Refine(SQ8)`; more: `IVF{n},PQ{m}x4fsr,Refine(SQ8)`, with n
    as in `lists_by_size` and m as in `product_parts`.
    """
    if count <= FLAT_LIMIT:
        return "Flat"
    if count <= SCAN_LIMIT:
        return f"PQ{product_parts(dimension)}x4fs,Refine(SQ8)"
    return f"IVF{lists_by_size(count)},PQ{product_parts(dimension)}x4fsr,Refine(SQ8)"


def product_parts(dimension: int) -> int:
    """Return the largest divisor of `dimension` that leaves each 4-bit sub-quantiser two or more values."""
    return max(m for m in range(1, max(dimension // 2, 1) + 1) if dimension % m == 0)


def factory_for(vectors: Float32Array, queries: Float32Array | None) -> str:
    """Return the factory string for document vectors (N, D): one laid out by queries (q, D) where there are some, or
    that of `choose_factory` for small corpora and vectors of few dimensions, which gain nothing from queries."""
    count, dimension = vectors.shape
    if queries is None or not len(queries) or count <= SCAN_LIMIT or dimension < MIN_DIMENSION:
        return choose_factory(count, dimension)
    return query_aware_factory(vectors, queries, lists_by_size(count))


def lists_by_size(count: int) -> int:
    """Return the number of inverted lists for `count` documents: the power of two next to sqrt(count)."""
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

    `factory` is a factory string of Faiss or of `artifacts.dense.query_aware`, which needs `queries`, float32 (q, D) of
    length 1; None for that of `factory_for`. The same vectors give the same bytes, whatever the number of threads.
    Raises RecipeError for a factory that Faiss refuses, that needs more vectors, or whose scores can't be computed
    again.
    """
    factory = factory or factory_for(vectors, queries)
    check_factory(factory, vectors.shape[1], len(vectors))
    with ProgressBar("dense", total=len(vectors), unit="documents") as progress:
        try:
            if not is_query_aware(factory):
                index = _plain(vectors, factory)
            elif queries is not None and len(queries):
                index = build_query_aware_index(vectors, queries, factory)
            else:
                raise RecipeError(
                    f'The factory "{factory}" needs a sample of queries, and there is none.',
                    remedy=f'Name one as index.queries, or use "{choose_factory(*vectors.shape)}".',
                )
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
            reported = scores[ordinals >= 0]
            again = dense.scores(query, ordinals[ordinals >= 0])
        except RuntimeError as error:
            raise _refused(factory, error) from error
        if np.abs(reported - again).max(initial=0) > _SCORE_TOLERANCE:
            raise RecipeError(
                f'Faiss factory "{factory}" gives scores that are off by {np.abs(reported - again).max():.3g} from the '
                f"vectors it holds, so documents found by the sparse leg only could not be scored.",
                remedy=f'Append a refinement: "{factory},Refine(SQ8)".',
            )


def _refused(factory: str, error: RuntimeError) -> RecipeError:
    return RecipeError(
        f'Faiss refuses the factory "{factory}": {faiss_reason(error)}.',
        remedy='Use another one, such as "Flat" or "HNSW32,SQ8".',
    )


MIN_RECALL: Final = 0.95
MIN_RECALL_OF_A_SCAN: Final = 0.99  # of an index of few documents, whose codes are all scanned
"""Share of the exact best 100 that a search is to find."""

_DEPTH: Final = 100
_TOLERANCE: Final = 0.01  # below the best recall, where no setting reaches MIN_RECALL
_GRAPH_WIDTHS: Final = (128, 256, 512, 1024)
_NARROWEST: Final = 128  # nprobe goes from a 128th of the lists to half of them
_STEPS_PER_DOUBLING: Final = 8
_FACTORS: Final = (2, 3, 4, 5, 6, 8, 12, 16, 32)
_RESCORE_BYTES: Final = 4096  # scoring a candidate again costs about as much as scanning this many bytes of 4-bit codes


def choose_parameters(
    index: FaissIndex, vectors: Float32Array, queries: Float32Array
) -> tuple[dict[str, float], float | None]:
    """Search parameters for an index of `vectors` (N, D), by Faiss's names, and their recall for `queries` (q, D).

    Recall is the share of the exact best 100 that a search for 100 finds, and is assumed not to fall with a parameter.
    The cheapest setting is chosen that reaches 0.95, or 0.99 where a search scans all codes, or that comes within 0.01
    of the best where none does: efSearch of a graph, else nprobe of inverted lists and k_factor_rf (candidates to score
    again, as a multiple of 100). An index without such parameters gets none; without queries it gets the narrowest
    setting; neither has a recall. The index is left with another setting.
    """
    widths = _widths(index)
    factors: list[dict[str, float]] = [{}]  # how many candidates to score again, from few to many
    if isinstance(index, faiss.IndexRefine):
        factors = [{"k_factor_rf": factor} for factor in _FACTORS]
    if widths == [{}] and factors == [{}]:
        return {}, None
    if not len(queries):
        return widths[0] | factors[0], None
    truth = faiss.knn(queries, vectors, min(_DEPTH, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT)[1]
    exact = [frozenset(best) for best in truth.tolist()]
    with ThreadPoolExecutor(os.cpu_count()) as threads:

        @cache
        def recall(width: int, factor: int) -> float:
            return _recall(index, widths[width] | factors[factor], queries, exact, threads)

        best = recall(len(widths) - 1, factor=len(factors) - 1)
        wanted = MIN_RECALL if len(widths) > 1 else MIN_RECALL_OF_A_SCAN
        least = wanted if best >= wanted else best - _TOLERANCE
        cheapest, chosen = math.inf, (len(widths) - 1, len(factors) - 1)
        for factor in range(len(factors)):
            costs = [_cost(index, width | factors[factor]) for width in widths]
            cheaper = range(bisect_left(costs, cheapest))  # only these widths could be chosen: costs rise
            if cheaper and recall(cheaper[-1], factor=factor) >= least:
                width = bisect_left(cheaper, least, key=partial(recall, factor=factor))
                cheapest, chosen = costs[width], (width, factor)
        width, factor = chosen
        return widths[width] | factors[factor], round(recall(width, factor=factor), 4)


def _widths(index: FaissIndex) -> list[dict[str, float]]:
    """The settings of how wide to search, from narrow to wide."""
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        doublings = math.log2(_NARROWEST) - 1
        steps = range(round(doublings * _STEPS_PER_DOUBLING) + 1)
        lists = {max(1, round(ivf.nlist / _NARROWEST * 2 ** (step / _STEPS_PER_DOUBLING))) for step in steps}
        return [{"nprobe": width} for width in sorted(lists)]
    return [{"efSearch": width} for width in _GRAPH_WIDTHS] if isinstance(innermost(index), faiss.IndexHNSW) else [{}]


def _cost(index: FaissIndex, setting: dict[str, float]) -> float:
    """The estimated cost of a search, as bytes of codes scanned; only comparable between settings of one index."""
    rescored = _RESCORE_BYTES * _DEPTH * setting.get("k_factor_rf", 0.0)
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        return float(setting["nprobe"] * index.ntotal / ivf.nlist * ivf.code_size + rescored)
    # A graph scores every candidate with all of its neighbours.
    return _RESCORE_BYTES * setting.get("efSearch", 0.0) + rescored


def _recall(
    index: FaissIndex,
    setting: dict[str, float],
    queries: Float32Array,
    exact: Sequence[frozenset[int]],
    threads: Executor,
) -> float:
    """The share of the `exact` documents of each query that a search finds."""
    for name, value in setting.items():
        faiss.ParameterSpace().set_index_parameter(index, name, value)
    searched = DenseIndex(index)
    results = threads.map(lambda query: searched.search(query, len(exact[0]))[0].tolist(), queries)
    return sum(len(best.intersection(ours)) for ours, best in zip(results, exact, strict=True)) / sum(map(len, exact))
