"""Vectors for tests."""

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dense.index import DenseIndex


def unit(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Rows (n, D), each cut to length 1."""
    found: npt.NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return found


def random_unit(count: int, dimension: int = 16, seed: int = 3) -> npt.NDArray[np.float32]:
    """Random rows (count, dimension) of length 1."""
    return unit(np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32))


def recall(index: DenseIndex, vectors: npt.NDArray[np.float32], queries: npt.NDArray[np.float32], k: int) -> float:
    """The share of the exact best `k` that an index of these vectors finds."""
    shared = 0
    for query in queries:
        exact = np.argsort(-(vectors @ query), kind="stable")[:k]
        shared += np.intersect1d(index.search(query, k)[0], exact).size
    return shared / (k * len(queries))
