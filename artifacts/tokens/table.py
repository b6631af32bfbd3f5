"""Token tables: the dense query encoder, one row per vocabulary entry, for one task instruction.

`E[t] = e(t)` is the last hidden state at `<eos>` of `[bos] instruction t <eos>`, and a query vector is
`normalise(mean_i E[t_i])`. Rows are stored as the model returns them: they are *not* normalised.
"""

from math import sqrt
from pathlib import Path, PurePath
from typing import Final, Literal, TypeVar, cast, get_args

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import Float32Array, Float64Array, Int32Array, Int64Array, IntegerArray
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.arrays import load_part
from lightretriever.artifacts.files.atomic import writing

TableDtype = Literal["float16", "float32", "int8"]
AnyPath = TypeVar("AnyPath", bound=PurePath)

_CHUNK_ROWS: Final = 8192  # rows converted at a time, so that a table larger than the memory can be written
_CHUNK_QUERIES: Final = 1_024  # whose rows are in memory at a time
_INT8_LIMIT: Final = 127
_AGAIN: Final = "Fetch or build the bundle or the table again."


def scale_path(path: AnyPath) -> AnyPath:
    """The file of an int8 table's row scales: `NAME.scale.npy` beside `NAME.npy`."""
    return path.with_suffix(".scale.npy")


def write_table(path: Path, rows: Float32Array, dtype: TableDtype = "float16") -> None:
    """Write `rows`, float32 (V, D), as `.npy`.

    An int8 table gets a second file with one float32 scale per row, shape (V,): `row = int8 * scale`, with an error of
    at most half a scale per value. Raises BundleError for another shape, a value that isn't finite and a value that
    float16 can't hold, and DiskError when the files can't be written.
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
    """A token table on disk, memory-mapped: opening it reads only the header, a lookup only the rows it needs."""

    def __init__(self, rows: npt.NDArray[np.generic], scales: Float32Array | None) -> None:
        self._rows, self._scales = rows, scales
        self.shape: tuple[int, int] = (rows.shape[0], rows.shape[1])
        self.dtype = cast(TableDtype, rows.dtype.name)

    @classmethod
    def open(cls, path: Path) -> "TokenTable":
        """Map the table `path`, and the scales beside it when it is int8.

        Raises BundleError when a file is missing or not `.npy`, or when its shape or number type is not a table's.
        """
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
        """Return `sum_t weight_t E[t]` over t token ids (t,), divided by its Euclidean norm, (D,), and that norm.

        A sum of norm 0 is returned as it is.
        """
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
        starts = bounds.tolist()
        with np.errstate(over="ignore", invalid="ignore"):  # a norm that is not finite says so
            for first in range(0, len(sums), _CHUNK_QUERIES):
                last = min(first + _CHUNK_QUERIES, len(sums))
                part = slice(starts[first], starts[last])
                rows = self.rows(ids[part]) * weights[part, None]
                for query in range(first, last):  # `reduceat` takes several times as long
                    query_rows = rows[starts[query] - part.start : starts[query + 1] - part.start]
                    np.add.reduce(query_rows, axis=0, out=sums[query])
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
