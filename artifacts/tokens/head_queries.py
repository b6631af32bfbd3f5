"""Head queries: the most frequent queries of a log, which the whole model read once.

The query encoder looks a query up here before it averages rows of the token table. Texts are compared as `normalised`
writes them. Vectors are L2-normalised; sparse weights are the model's own, without IDF.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import Float32Array, Int32Array
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy, write_array
from lightretriever.artifacts.files.reading import read_bounded
from lightretriever.artifacts.files.workdir import write_atomically

__all__ = ["FULL_QUERY_TERMS", "MAX_QUERIES", "HeadQueries", "HeadQuery", "SparseRow", "normalised", "padded"]

FULL_QUERY_TERMS: Final = 64
"""Sparse terms that a whole model keeps of a query."""

MAX_QUERIES: Final = 1_000_000
_MAX_BYTES: Final = 1 << 30
_CHUNK: Final = 8192
_SPARSE: Final = np.dtype([("term", "<i4"), ("weight", "<f4")])
_FETCH: Final = "Fetch or build the bundle again."

SparseRow = tuple[Int32Array, Float32Array]
"""Token ids (t,), ascending, and their weights (t,), above 0."""


def normalised(text: str, *, lowercase: bool) -> str:
    """The form in which queries are compared: single spaces, none at the ends, lowercase where the tokenizer is."""
    return " ".join((text.lower() if lowercase else text).split())


def padded(rows: Sequence[SparseRow], width: int) -> npt.NDArray[Any]:
    """Sparse rows of at most `width` terms as one array of pairs (n, `width`); what is missing weighs 0."""
    array = np.zeros((len(rows), width), dtype=_SPARSE)
    for row, (terms, weights) in zip(array, rows, strict=True):
        row["term"][: len(terms)], row["weight"][: len(terms)] = terms, weights
    return array


class HeadQuery(NamedTuple):
    """A query as the model read it: `dense` (D,) float32 of length 1; `sparse`, None if the model gave no weights."""

    dense: Float32Array
    sparse: SparseRow | None


class HeadQueries:
    """The head queries of one task: n texts, their `vectors` (n, D), and their `sparse` rows as `padded` makes them,
    None without. The arrays may be memory maps."""

    def __init__(
        self, texts: Sequence[str], vectors: npt.NDArray[Any], sparse: npt.NDArray[Any] | None, *, lowercase: bool
    ) -> None:
        """Raises ValueError for parts that don't fit each other, or a text twice."""
        self._places = {text: place for place, text in enumerate(texts)}
        if not len(self._places) == len(texts) == len(vectors):
            raise ValueError(f"{len(texts)} texts, {len(self._places)} of them different, for {len(vectors)} vectors")
        if vectors.ndim != 2 or vectors.dtype.kind != "f":
            raise ValueError(f"the vectors are {vectors.dtype} of shape {vectors.shape}")
        if sparse is not None and (sparse.dtype, sparse.shape[:1], sparse.ndim) != (_SPARSE, (len(texts),), 2):
            raise ValueError(f"the sparse rows are {sparse.dtype} of shape {sparse.shape} for {len(texts)} texts")
        self.vectors = np.asarray(vectors)  # a view of the map; indexing a memmap itself costs several times as much
        self.sparse = None if sparse is None else np.asarray(sparse)
        self._lowercase = lowercase

    @classmethod
    def open(cls, texts: Path, vectors: Path, sparse: Path | None = None, *, lowercase: bool) -> Self:
        """Map the files that `save` wrote. Raises BundleError."""
        try:
            found = json.loads(read_bounded(texts, _MAX_BYTES))
            if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
                raise ValueError(f"{texts.name} is no list of texts")
            rows = None if sparse is None else load_npy(sparse)
            return cls(found, load_npy(vectors), rows, lowercase=lowercase)
        except (*UNREADABLE, RecursionError) as error:
            raise BundleError(f"{texts}: unusable head queries: {error}.", remedy=_FETCH) from error

    def __len__(self) -> int:
        return len(self._places)

    def save(self, files: Sequence[Path], dimension: int) -> None:
        """Write texts, vectors and, where there are any, sparse rows to the `files`, each atomically.

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
        if self.sparse is not None:
            write_array(files[2], self.sparse)

    def find(self, text: str) -> HeadQuery | None:
        """Look a query up; None for one that is no head query."""
        place = self._places.get(normalised(text, lowercase=self._lowercase))
        if place is None:
            return None
        vector = self.vectors[place].astype(np.float32)
        row = None if self.sparse is None else self.sparse[place][self.sparse[place]["weight"] > 0]
        sparse = None if row is None else (row["term"].copy(), row["weight"].copy())
        return HeadQuery(vector / np.float32(np.linalg.norm(vector)), sparse)

    def first_bad(self, vocab_size: int) -> str | None:
        """The first query whose vector has another length than 1, or a term that is no token id or has no weight from
        0 upwards; None if all are sound."""
        for start in range(0, len(self), _CHUNK):
            part = slice(start, start + _CHUNK)
            bad = ~(np.abs(np.linalg.norm(self.vectors[part].astype(np.float32), axis=1) - 1) < 0.01)
            if self.sparse is not None:
                terms, weights = self.sparse[part]["term"], self.sparse[part]["weight"]
                bad |= ~((terms >= 0) & (terms < vocab_size) & np.isfinite(weights) & (weights >= 0)).all(axis=1)
            if bad.any():
                return list(self._places)[start + int(np.flatnonzero(bad)[0])]
        return None
