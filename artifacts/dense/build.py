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

from lightretriever.artifacts.dense.index import DenseIndex, FaissIndex, faiss_reason
from lightretriever.artifacts.dense.query_aware import MIN_DIMENSION, build_query_aware_index
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.reports import ProgressBar

FLAT_LIMIT: Final = 5_000  # documents of which an exact scan takes a fraction of a millisecond
SCAN_LIMIT: Final = 20_000  # documents whose 4-bit codes are all scanned; of more, those of some inverted lists


def build_dense_index(vectors: Float32Array, queries: Float32Array | None = None) -> tuple[FaissIndex, str]:
    """Return the Faiss index over document vectors (N, D), which may be a memory map, and its name.

    It is that of `factory_for`, or where there are `queries` (q, D), N is above 20,000 and D at least 16, one laid out
    by them (`artifacts.dense.query_aware`); all vectors are float32 of length 1. The same vectors give the same bytes,
    whatever the number of threads.
    """
    count, dimension = vectors.shape
    with ProgressBar("dense", total=count, unit="documents") as progress:
        if count > SCAN_LIMIT and dimension >= MIN_DIMENSION and queries is not None and len(queries):
            index, factory = build_query_aware_index(vectors, queries, lists_by_size(count))
        else:
            factory = factory_for(count, dimension)
            index = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
            index.train(vectors)
            index.add(vectors)
        progress.advance(count)
    return index, factory


def factory_for(count: int, dimension: int) -> str:
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


def lists_by_size(count: int) -> int:
    """Return the number of inverted lists for `count` documents: the power of two next to sqrt(count)."""
    return int(2 ** round(math.log2(math.sqrt(count))))


def write_dense_index(index: FaissIndex, path: Path) -> None:
    """Write a Faiss index to a file. Raises BundleError when the file can't be written."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:
        raise BundleError(
            f"{path}: the index can't be written: {faiss_reason(error)}.", remedy="Look at free space and permissions."
        ) from error


MIN_RECALL: Final = 0.95
MIN_RECALL_OF_A_SCAN: Final = 0.99  # of an index of few documents, whose codes are all scanned
"""Share of the exact best 100 that a search is to find."""

_DEPTH: Final = 100
_TOLERANCE: Final = 0.01  # below the best recall, where no setting reaches MIN_RECALL
_NARROWEST: Final = 128  # nprobe goes from a 128th of the lists to half of them
_STEPS_PER_DOUBLING: Final = 8
_FACTORS: Final = (2, 3, 4, 5, 6, 8, 12, 16, 32)
_RESCORE_BYTES: Final = 4096  # scoring a candidate again costs about as much as scanning this many bytes of 4-bit codes


def choose_parameters(
    index: FaissIndex, vectors: Float32Array, queries: Float32Array
) -> tuple[dict[str, float], float | None]:
    """Search parameters for an index of `vectors` (N, D), by Faiss's names, and their recall for `queries` (q, D).

    Recall is the share of the exact best 100 that a search for 100 finds, and is assumed not to fall with a parameter.
    The cheapest setting of nprobe (inverted lists) and k_factor_rf (candidates to score again, as a multiple of 100) is
    chosen that reaches 0.95, or 0.99 where a search scans all codes, or that comes within 0.01 of the best where none
    does. `Flat` gets no parameters; without queries the narrowest setting is taken; neither has a recall. The index is
    left with another setting.
    """
    if not isinstance(index, faiss.IndexRefine):
        return {}, None
    widths = _widths(index)
    factors: list[dict[str, float]] = [{"k_factor_rf": factor} for factor in _FACTORS]
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
    if ivf is None:
        return [{}]
    doublings = math.log2(_NARROWEST) - 1
    steps = range(round(doublings * _STEPS_PER_DOUBLING) + 1)
    lists = {max(1, round(ivf.nlist / _NARROWEST * 2 ** (step / _STEPS_PER_DOUBLING))) for step in steps}
    return [{"nprobe": width} for width in sorted(lists)]


def _cost(index: FaissIndex, setting: dict[str, float]) -> float:
    """The estimated cost of a search, as bytes of codes scanned; only comparable between settings of one index."""
    rescored = _RESCORE_BYTES * _DEPTH * setting["k_factor_rf"]
    ivf = faiss.try_extract_index_ivf(index)
    return rescored if ivf is None else float(setting["nprobe"] * index.ntotal / ivf.nlist * ivf.code_size + rescored)


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
