"""Vectors for tests."""

import numpy as np
import numpy.typing as npt

__all__ = ["random_unit", "unit"]


def unit(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Rows (n, D), each cut to length 1."""
    found: npt.NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return found


def random_unit(count: int, dimension: int = 16, seed: int = 3) -> npt.NDArray[np.float32]:
    """Random rows (count, dimension) of length 1."""
    return unit(np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32))
