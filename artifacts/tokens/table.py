"""Token tables: the dense query encoder, one row per vocabulary entry, for one task instruction.

`E[t] = e(t)` is the last hidden state at `<eos>` of `[bos] instruction t <eos>`, and a query vector is
`normalise(mean_i E[t_i])`. Rows are stored as the model returns them: they are *not* normalised. Head queries have
vectors of their own.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from pathlib import Path, PurePath
from typing import Final, Literal, Self, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import Float32Array, Float64Array, Int32Array, Int64Array, IntegerArray
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy, load_part, write_array
from lightretriever.artifacts.files.atomic import writing
from lightretriever.artifacts.files.reading import read_bounded
from lightretriever.artifacts.files.workdir import write_atomically

TableDtype = Literal["float16", "float32", "int8"]
AnyPath = TypeVar("AnyPath", bound=PurePath)

_CHUNK_ROWS: Final = 8192  # rows converted at a time, so that a table larger than the memory can be written
_INT8_LIMIT: Final = 127
MAX_QUERIES: Final = 1_000_000
"""Most head queries of a task."""
_MAX_TEXTS_BYTES: Final = 1 << 30
_AGAIN: Final = "Fetch or build the bundle or the table again."


def scale_path(path: AnyPath) -> AnyPath:
    """The file of an int8 table's row scales: `NAME.scale.npy` beside `NAME.npy`."""
    return path.with_suffix(".scale.npy")


def write_table(path: Path, rows: Float32Array, dtype: TableDtype = "float16") -> None:
    """Write `rows`, float32 (V, D), as `.npy`, and the float32 scales (V,) of an int8 table beside it: `row = int8 *
    scale`, with an error of at most half a scale per value. Raises BundleError for another shape and a value that isn't
    finite or that float16 can't hold, and DiskError.
    """
    if rows.ndim != 2 or 0 in rows.shape:
        raise BundleError(f"{path.name}: a token table has shape (V, D), found {rows.shape}.", remedy=_AGAIN)
    scales = np.zeros(rows.shape[0], dtype=np.float32)
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": rows.shape}
    with writing(path), path.open("wb") as file:  # not a memory map: a full disk would end the process with SIGBUS
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, rows.shape[0], _CHUNK_ROWS):
            part = slice(start, start + _CHUNK_ROWS)
            values = np.asarray(rows[part], dtype=np.float32)
            _check_values(path, values, dtype, start)
            if dtype == "int8":
                quantised, scales[part] = _quantise(values)
                file.write(quantised.tobytes())
            else:
                file.write(values.astype(dtype).tobytes())
    if dtype == "int8":
        with writing(scale_path(path)):
            np.save(scale_path(path), scales)


class TokenTable:
    """A token table on disk, memory-mapped: a lookup reads the rows that it needs."""

    def __init__(self, rows: npt.NDArray[np.generic], scales: Float32Array | None) -> None:
        self._rows, self._scales = rows, scales
        self.shape: tuple[int, int] = (rows.shape[0], rows.shape[1])
        self.dtype = cast(TableDtype, rows.dtype.name)

    @classmethod
    def open(cls, path: Path) -> "TokenTable":
        """Map the table `path`, and the scales beside it when it is int8. Raises BundleError for a file that is
        missing, not `.npy`, or of a shape or number type that is not a table's."""
        path = Path(path)
        rows = load_part(path, _AGAIN)
        if rows.ndim != 2 or 0 in rows.shape:
            raise BundleError(f"{path}: a token table has shape (V, D), found {rows.shape}.", remedy=_AGAIN)
        if rows.dtype.name not in get_args(TableDtype):
            expected = ", ".join(get_args(TableDtype))
            raise BundleError(f"{path}: the rows are {rows.dtype.name}, expected one of {expected}.", remedy=_AGAIN)
        if not (rows.flags.c_contiguous and rows.dtype.isnative):
            raise BundleError(f"{path}: the rows are not a C array in this processor's byte order.", remedy=_AGAIN)
        if rows.dtype != np.int8:
            return cls(rows, None)
        scales = load_part(scale_path(path), _AGAIN)
        if scales.shape != rows.shape[:1] or scales.dtype != np.float32:
            raise BundleError(
                f"{scale_path(path)}: expected {rows.shape[0]} float32 scales, one per row of {path.name}, "
                f"found {scales.dtype.name} of shape {scales.shape}.",
                remedy=_AGAIN,
            )
        return cls(rows, scales.astype(np.float32, copy=False))

    def rows(self, ids: IntegerArray) -> Float32Array:
        """The rows E[t] of the token ids `ids`, shape (n,), as float32 of shape (n, D)."""
        rows: Float32Array = self._rows[ids].astype(np.float32)
        if self._scales is not None:
            rows *= self._scales[ids][:, None]
        return rows

    def direction(self, ids: IntegerArray, weights: Float32Array) -> tuple[Float32Array, float]:
        """Return `sum_t weight_t E[t]` over token ids (t,), divided by its Euclidean norm unless that is 0, (D,), and
        the norm."""
        with np.errstate(over="ignore", invalid="ignore"):  # a norm that is not finite says so
            wide = np.add.reduce(self.rows(ids) * weights[:, None], axis=0).astype(np.float64)
            norm = sqrt(float(np.einsum("d,d->", wide, wide)))
            return (wide / (norm if norm > 0 else 1.0)).astype(np.float32), norm

    def directions(
        self, bounds: Int64Array, ids: IntegerArray, weights: Float32Array
    ) -> tuple[Float32Array, Float64Array]:
        """Return the `direction` of each of q queries, (q, D), and the norms (q,), to the same bits. The tokens of
        query i are those from bounds[i] to bounds[i + 1], as `count_each` returns them; without tokens, the norm is 0.
        """
        sums = np.zeros((len(bounds) - 1, self.shape[1]), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # a norm that is not finite says so
            rows = self.rows(ids) * weights[:, None]
            for query, (start, end) in enumerate(pairwise(bounds.tolist())):  # `reduceat` takes several times as long
                np.add.reduce(rows[start:end], axis=0, out=sums[query])
            wide = sums.astype(np.float64)
            norms = np.sqrt(np.einsum("qd,qd->q", wide, wide))
            return (wide / np.where(norms > 0, norms, 1.0)[:, None]).astype(np.float32), norms


def count_each(ids: Int32Array, lengths: Int64Array) -> tuple[Int64Array, Int32Array, Int64Array]:
    """Return bounds (q + 1,), the distinct token ids (t,) and their counts (t,) of q queries, whose ids stand one query
    after the other in `ids` (n,), `lengths` (q,) of each. Those of query i, ascending, stand from bounds[i] to
    bounds[i + 1]."""
    size = int(ids.max()) + 1 if ids.size else 1
    queries = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    distinct, counts = np.unique(queries * size + ids, return_counts=True)
    bounds = np.searchsorted(distinct, np.arange(len(lengths) + 1, dtype=np.int64) * size)
    return bounds, (distinct % size).astype(np.int32), counts


def _check_values(path: Path, values: Float32Array, dtype: TableDtype, start: int) -> None:
    """Raise BundleError for the first row with a value that `dtype` can't hold."""
    limit = float(np.finfo(np.float16).max) if dtype == "float16" else float(np.finfo(np.float32).max)
    bad = ~(np.abs(values) <= limit)  # NaN compares as false
    if bad.any():
        row, column = np.argwhere(bad)[0]
        raise BundleError(
            f"{path.name}: row {start + row} holds {values[row, column]}, which {dtype} can't hold "
            f"(finite values up to {limit:g}).",
            remedy="Look at the model that made the row; a large finite value fits float32.",
        )


def _quantise(values: Float32Array) -> tuple[npt.NDArray[np.int8], Float32Array]:
    """Symmetric int8 with one scale per row: `scale = max|row| / 127`. Shapes (n, D) and (n,)."""
    # The smallest normal number prevents a division by zero in rows of zeros (and of subnormals).
    scales = np.maximum(np.abs(values).max(axis=1) / np.float32(_INT8_LIMIT), np.finfo(np.float32).tiny)
    quantised = np.rint(values / scales[:, None]).clip(-_INT8_LIMIT, _INT8_LIMIT)
    return quantised.astype(np.int8), scales.astype(np.float32)


def normalised(text: str, *, lowercase: bool) -> str:
    """The form in which queries are compared: single spaces, none at the ends, lowercase where the tokenizer is."""
    return " ".join((text.lower() if lowercase else text).split())


class HeadQueries:
    """The most frequent queries of a log, which the whole model read once for a task: n texts, as `normalised` writes
    them, and their `vectors` (n, D), L2-normalised, which may be a memory map. They go before the token table."""

    def __init__(self, texts: Sequence[str], vectors: npt.NDArray[np.generic], *, lowercase: bool) -> None:
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
            queries = json.loads(read_bounded(texts, _MAX_TEXTS_BYTES))
            if not isinstance(queries, list) or not all(isinstance(text, str) for text in queries):
                raise ValueError(f"{texts.name} is no list of texts")
            return cls(queries, load_npy(vectors), lowercase=lowercase)
        except (*UNREADABLE, RecursionError) as error:
            raise BundleError(f"{texts}: unusable head queries: {error}.", remedy=_AGAIN) from error

    def __len__(self) -> int:
        return len(self._places)

    def save(self, files: Sequence[Path], dimension: int) -> None:
        """Write texts and vectors to the two `files`, each atomically. Vectors are cut to the first `dimension` values
        and normalised again, float16. Raises BundleError for one that is zero or not finite, DiskError."""
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
        for start in range(0, len(self), _CHUNK_ROWS):
            lengths = np.linalg.norm(self.vectors[start : start + _CHUNK_ROWS].astype(np.float32), axis=1)
            if (bad := np.flatnonzero(~(np.abs(lengths - 1) < 0.01))).size:
                return list(self._places)[start + int(bad[0])]
        return None
