"""Vectors for tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from lightretriever.artifacts.dense import build
from lightretriever.artifacts.dense.index import DenseIndex

Layout: TypeAlias = Literal["flat", "codes", "lists"]
_LIMITS: Final[dict[Layout, tuple[float, float]]] = {"flat": (1e9, 1e9), "codes": (0, 1e9), "lists": (0, 0)}


@contextmanager
def laid_out(layout: Layout) -> Iterator[None]:
    """Build dense indexes of any number of documents as those of 1,000 are built ("flat"), of 10,000, of 100,000."""
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in zip(("FLAT_LIMIT", "SCAN_LIMIT"), _LIMITS[layout], strict=True):
            patch.setattr(build, name, limit)
        yield


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
