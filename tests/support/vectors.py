"""Vectors for tests."""

import numpy as np
import numpy.typing as npt

__all__ = ["unit"]


def unit(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """Rows (n, D), each cut to length 1."""
    found: npt.NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return found
