"""The background of a bundle: vectors of documents from all over the corpus, which tell how good a best score is.

With the scores b of a query in the background, its best document, of score s, is (s - mean(b)) / std(b) deviations
above the corpus: many where the corpus has what the query asks for.
"""

from pathlib import Path
from typing import Final

import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, Int64Array
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.arrays import load_part, write_array

__all__ = ["BACKGROUND_FILE", "background_ordinals", "load_background", "save_background"]

BACKGROUND_FILE: Final = "background.npy"
_MAX_DOCUMENTS: Final = 256
_REMEDY: Final = "Fetch the bundle again, or build it again."
_TOLERANCE: Final = 1e-3


def background_ordinals(documents: int) -> Int64Array:
    """Return the ordinals (b,) int64 of the background of a corpus: b = min(documents, 256), evenly spaced."""
    count = min(documents, _MAX_DOCUMENTS)
    return np.arange(count, dtype=np.int64) * documents // count


def save_background(path: Path, vectors: Float32Array) -> None:
    """Write the vectors (b, D) float32 of length 1 as `.npy`."""
    write_array(path, vectors)


def load_background(path: Path, dimension: int) -> Float32Array:
    """Read the vectors (b, D) float32. Raises BundleError for another shape or type, and for lengths other than 1."""
    vectors: Float32Array = load_part(path, _REMEDY, mapped=False)
    if vectors.dtype != np.float32 or vectors.ndim != 2 or not len(vectors) or vectors.shape[1] != dimension:
        found = f"{vectors.dtype.name} of shape {vectors.shape}"
        raise BundleError(f"{path}: {found} instead of float32 of shape (b, {dimension}).", remedy=_REMEDY)
    lengths = np.sqrt(np.einsum("bd,bd->b", vectors, vectors))
    if (bad := np.flatnonzero(~(np.abs(lengths - 1) < _TOLERANCE))).size:
        raise BundleError(f"{path}: vector {bad[0]} has the length {lengths[bad[0]]:g} instead of 1.", remedy=_REMEDY)
    return vectors
