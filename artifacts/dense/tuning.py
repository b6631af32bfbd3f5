"""Choosing the search parameters of a dense index: the cheapest that find nearly all that an exact search finds.

How wide an approximate index must search depends on the vectors and on the queries: a mean of token rows lies elsewhere
than a document. So recall is measured when a bundle is written, with a sample of queries or with queries made of its
own documents.
"""

import math
import os
from bisect import bisect_left
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial
from typing import Final

import faiss

from lightretriever.artifacts.dense.index import DenseIndex, FaissIndex, innermost
from lightretriever.artifacts.dtypes import Float32Array

__all__ = ["MIN_RECALL", "MIN_RECALL_OF_A_SCAN", "choose_parameters"]

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

Vectors = Float32Array


def choose_parameters(index: FaissIndex, vectors: Vectors, queries: Vectors) -> tuple[dict[str, float], float | None]:
    """Search parameters for an index of `vectors` (N, D), by Faiss's names, and their recall for `queries` (q, D).

    Recall is the share of the exact best 100 that a search for 100 finds. The cheapest setting is chosen that reaches
    0.95, or 0.99 where a search scans all codes, or that comes within 0.01 of the best where none does: efSearch of a
    graph, else nprobe of inverted lists and k_factor_rf (candidates to score again, as a multiple of 100). An index
    without such parameters gets none, and no recall; without queries, the narrowest setting, and no recall. Recall is
    assumed not to fall with either parameter. The same vectors and queries give the same setting. The index is left
    with another setting.
    """
    widths, factors = _widths(index), _factors(index)
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


def _factors(index: FaissIndex) -> list[dict[str, float]]:
    """The settings of how many candidates to score again, from few to many."""
    return [{"k_factor_rf": factor} for factor in _FACTORS] if isinstance(index, faiss.IndexRefine) else [{}]


def _cost(index: FaissIndex, setting: dict[str, float]) -> float:
    """The estimated cost of a search, as bytes of codes scanned; only comparable between settings of one index."""
    rescored = _RESCORE_BYTES * _DEPTH * setting.get("k_factor_rf", 0.0)
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        return float(setting["nprobe"] * index.ntotal / ivf.nlist * ivf.code_size + rescored)
    # A graph scores every candidate with all of its neighbours.
    return _RESCORE_BYTES * setting.get("efSearch", 0.0) + rescored


def _recall(
    index: FaissIndex, setting: dict[str, float], queries: Vectors, exact: Sequence[frozenset[int]], threads: Executor
) -> float:
    """The share of the `exact` documents of each query that a search finds."""
    for name, value in setting.items():
        faiss.ParameterSpace().set_index_parameter(index, name, value)
    searched = DenseIndex(index)
    found = threads.map(lambda query: searched.search(query, len(exact[0]))[0].tolist(), queries)
    return sum(len(best.intersection(ours)) for ours, best in zip(found, exact, strict=True)) / sum(map(len, exact))
