"""Head queries: the most frequent queries of a log, which the whole model read once.

The query encoder looks a query up here before it averages rows of the token table. Texts are compared as `normalised`
writes them. Vectors are L2-normalised.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy, write_array
from lightretriever.artifacts.files.reading import read_bounded
from lightretriever.artifacts.files.workdir import write_atomically

MAX_QUERIES: Final = 1_000_000
_MAX_BYTES: Final = 1 << 30
_CHUNK: Final = 8192
_FETCH: Final = "Fetch or build the bundle again."


def normalised(text: str, *, lowercase: bool) -> str:
    """The form in which queries are compared: single spaces, none at the ends, lowercase where the tokenizer is."""
    return " ".join((text.lower() if lowercase else text).split())


class HeadQueries:
    """The head queries of one task: n texts and their `vectors` (n, D), which may be a memory map."""

    def __init__(self, texts: Sequence[str], vectors: npt.NDArray[Any], *, lowercase: bool) -> None:
        """Raises ValueError for parts that don't fit each other, or a text twice."""
        self._places = {text: index for index, text in enumerate(texts)}
        if not len(self._places) == len(texts) == len(vectors):
            raise ValueError(f"{len(texts)} texts, {len(self._places)} of them different, for {len(vectors)} vectors")
        if vectors.ndim != 2 or vectors.dtype.kind != "f":
            raise ValueError(f"the vectors are {vectors.dtype} of shape {vectors.shape}")
        self.vectors = vectors
        self._lowercase = lowercase

    @classmethod
    def open(cls, texts: Path, vectors: Path, *, lowercase: bool) -> Self:
        """Map the files that `save` wrote. Raises BundleError."""
        try:
            queries = json.loads(read_bounded(texts, _MAX_BYTES))
            if not isinstance(queries, list) or not all(isinstance(text, str) for text in queries):
                raise ValueError(f"{texts.name} is no list of texts")
            return cls(queries, load_npy(vectors), lowercase=lowercase)
        except (*UNREADABLE, RecursionError) as error:
            raise BundleError(f"{texts}: unusable head queries: {error}.", remedy=_FETCH) from error

    def __len__(self) -> int:
        return len(self._places)

    def save(self, files: Sequence[Path], dimension: int) -> None:
        """Write texts and vectors to the two `files`, each atomically.

        Vectors are cut to the first `dimension` values and normalised again, float16. Raises BundleError for one that
        is zero or not finite, DiskError.
        """
        cut = self.vectors[:, :dimension].astype(np.float32)
        norms = np.linalg.norm(cut, axis=1, keepdims=True)
        for text, norm in zip(self._places, norms[:, 0], strict=True):
            if not (np.isfinite(norm) and norm > 0):
                raise BundleError(
                    f"The head query {text[:80]!r} has a vector of length {norm:g}.",
                    remedy="Take it out of the log, or set model.dtype to float32.",
                )
        write_atomically(files[0], json.dumps(list(self._places), ensure_ascii=False).encode())
        write_array(files[1], (cut / norms).astype(np.float16))

    def find(self, text: str) -> Float32Array | None:
        """The vector (D,) of a query, of length 1; None for one that is no head query."""
        row = self._places.get(normalised(text, lowercase=self._lowercase))
        if row is None:
            return None
        vector = self.vectors[row].astype(np.float32)
        unit: Float32Array = vector / np.float32(np.linalg.norm(vector))
        return unit

    def first_bad(self) -> str | None:
        """The first query whose vector has another length than 1; None if all are sound."""
        for start in range(0, len(self), _CHUNK):
            part = slice(start, start + _CHUNK)
            bad = ~(np.abs(np.linalg.norm(self.vectors[part].astype(np.float32), axis=1) - 1) < 0.01)
            if bad.any():
                return list(self._places)[start + int(np.flatnonzero(bad)[0])]
        return None
