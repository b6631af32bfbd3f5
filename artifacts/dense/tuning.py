"""Choosing a dense index' search parameters: the cheapest that find nearly all that an exact search finds.

How wide an approximate index must search depends on the vectors, and on the queries too: a mean of token rows lies
elsewhere than a document. So recall is measured when a bundle is written, by a sample of queries, or by queries that
its own documents make.
"""

import math
import os
from bisect import bisect_left
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache, partial
from typing import Final

import faiss
import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.dense.build import BuiltIndex
from lightretriever.artifacts.dense.index import DenseIndex, FaissIndex
from lightretriever.artifacts.tokens.table import TokenTable

__all__ = ["LEAST_RECALL", "QuerySample", "choose_parameters", "query_vectors"]

LEAST_RECALL: Final = 0.95
"""Share of the exact best 100 that a search is to find."""

_BEST: Final = 100
_NEARLY: Final = 0.01  # where no setting finds enough, the cheapest that finds nearly as much as the best one
_QUERIES: Final = 256
_TERMS: Final = 8  # of a document, for a query
_GRAPH_WIDTHS: Final = (128, 256, 512, 1024)
_LEAST_SHARE: Final = 128  # of the lists, a 128th is the least that is looked into, and half of them the most
_STEPS: Final = 8  # in which a width doubles
_FACTORS: Final = (2, 3, 4, 5, 6, 8, 12, 16, 32)
_RESCORE: Final = 4096  # scoring a candidate again costs about as much as scanning so many bytes of 4-bit codes

Vectors = npt.NDArray[np.float32]


class QuerySample:
    """Terms of up to 512 documents from all over a corpus of unknown length: every s-th, s a power of two."""

    def __init__(self) -> None:
        self._terms: list[npt.NDArray[np.integer]] = []
        self._stride = 1
        self._count = 0

    def add(self, batch: EncodedBatch) -> None:
        """See the next documents: of some, the terms of the largest impact are kept."""
        for row in range(len(batch.ids)):
            if self._count % self._stride == 0:
                self._keep(batch, row)
            self._count += 1

    def _keep(self, batch: EncodedBatch, row: int) -> None:
        part = slice(batch.indptr[row], batch.indptr[row + 1])
        best = np.argsort(-batch.impacts[part].astype(np.int64), kind="stable")[:_TERMS]
        self._terms.append(batch.terms[part][best])
        if len(self._terms) == 2 * _QUERIES:
            self._terms = self._terms[::2]
            self._stride *= 2

    def queries(self, table: TokenTable) -> Vectors:
        """Their queries, (q, D) float32: normalised means of the terms' rows. None without a direction."""
        return query_vectors(table, self._terms)


def query_vectors(table: TokenTable, tokens: Iterable[npt.NDArray[np.integer]]) -> Vectors:
    """Queries of token ids (n,) each, as they are encoded: (q, D) float32 of length 1. None without a direction."""
    means = [table.mean(ids) for ids in tokens if ids.size]
    rows = np.array(means, dtype=np.float32).reshape(-1, table.shape[1])
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    found: Vectors = (rows / np.maximum(lengths, np.finfo(np.float32).tiny))[lengths[:, 0] > 0]
    return found


def choose_parameters(built: BuiltIndex, vectors: Vectors, queries: Vectors) -> tuple[dict[str, float], float | None]:
    """Search parameters for an index of `vectors` (N, D), by Faiss' own names, and their recall for `queries` (q, D).

    The recall is the share of the exact best 100 among those that a search for 100 finds. Chosen is the cheapest
    setting that reaches 0.95, or comes within 0.01 of the best where none does: efSearch of a graph, else nprobe (of
    the inverted lists) and k_factor_rf (candidates scored again, as a multiple of 100). An index without such
    parameters gets none, and no recall. A wider search, and one that scores more candidates again, is taken to find no
    less. The same vectors and queries give the same setting.
    """
    widths, factors = _widths(built.index), _factors(built.index)
    if widths == [{}] and factors == [{}]:
        return {}, None
    if not len(queries):
        return widths[0] | factors[0], None
    truth = faiss.knn(queries, vectors, min(_BEST, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT)[1]
    with ThreadPoolExecutor(os.cpu_count()) as threads:

        @cache
        def recall(width: int, factor: int) -> float:
            return _recall(built, widths[width] | factors[factor], queries, truth, threads)

        best = recall(len(widths) - 1, factor=len(factors) - 1)
        least = LEAST_RECALL if best >= LEAST_RECALL else best - _NEARLY
        found: list[tuple[float, int, int]] = []
        for factor in range(len(factors)):
            width = bisect_left(range(len(widths)), least, key=partial(recall, factor=factor))
            if width < len(widths):
                found.append((_cost(built.index, widths[width] | factors[factor]), width, factor))
        _, width, factor = min(found)
        return widths[width] | factors[factor], round(recall(width, factor=factor), 4)


def _widths(index: FaissIndex) -> list[dict[str, float]]:
    """How wide a search may be, the narrowest first."""
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        doublings = math.log2(_LEAST_SHARE) - 1
        steps = range(round(doublings * _STEPS) + 1)
        wide = {max(1, round(ivf.nlist / _LEAST_SHARE * 2 ** (step / _STEPS))) for step in steps}
        return [{"nprobe": width} for width in sorted(wide)]
    return [{"efSearch": width} for width in _GRAPH_WIDTHS] if _is_graph(index) else [{}]


def _factors(index: FaissIndex) -> list[dict[str, float]]:
    """How many candidates may be scored again, the fewest first."""
    return [{"k_factor_rf": factor} for factor in _FACTORS] if isinstance(index, faiss.IndexRefine) else [{}]


def _cost(index: FaissIndex, setting: dict[str, float]) -> float:
    """What a search costs, as if it were bytes that are read; comparable for settings of one index."""
    rescored = _RESCORE * _BEST * setting.get("k_factor_rf", 0.0)
    ivf = faiss.try_extract_index_ivf(index)
    if ivf is not None:
        return float(setting["nprobe"] * index.ntotal / ivf.nlist * ivf.code_size + rescored)
    # A graph's candidate is scored with all its neighbours.
    return _RESCORE * setting.get("efSearch", 0.0) + rescored


def _is_graph(index: FaissIndex) -> bool:
    while isinstance(index, faiss.IndexRefine | faiss.IndexPreTransform):
        inner = index.base_index if isinstance(index, faiss.IndexRefine) else index.index
        index = faiss.downcast_index(inner)
    return isinstance(index, faiss.IndexHNSW)


def _recall(
    built: BuiltIndex, setting: dict[str, float], queries: Vectors, truth: npt.NDArray[np.int64], threads: Executor
) -> float:
    for name, value in setting.items():
        faiss.ParameterSpace().set_index_parameter(built.index, name, value)
    searched = DenseIndex(*built)
    found = threads.map(lambda query: searched.search(query, truth.shape[1])[0], queries)
    return sum(np.intersect1d(ours, exact).size for ours, exact in zip(found, truth, strict=True)) / truth.size
