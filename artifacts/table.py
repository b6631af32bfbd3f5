"""Token tables: the dense query encoder, one row per vocabulary entry, behind one task instruction.

`E[t] = e(t)` is the last hidden state at `<eos>` of `[bos] instruction t <eos>`, and a query vector is
`normalise(mean_i E[t_i])`. Rows are stored as they come from the model: they are *not* normalised.
"""

from pathlib import Path, PurePath
from typing import Any, Final, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from artifacts.arrays import UNREADABLE
from artifacts.disk import writing
from artifacts.errors import BundleError

__all__ = ["TableDtype", "TokenTable", "scale_path", "write_table"]

TableDtype = Literal["float16", "float32", "int8"]
Ids = npt.NDArray[np.integer]
AnyPath = TypeVar("AnyPath", bound=PurePath)

_CHUNK_ROWS: Final = 8192  # rows converted at a time, so that a table larger than the memory can be written
_INT8_LIMIT: Final = 127

# A float16 whose bits stand 13 places further left is a float32, but for the offset of its exponent.
# As arrays, which NumPy takes faster than numbers.
_HALF_SHIFT: Final = np.array(13, dtype=np.int32)
_HALF_BITS: Final = np.array(-0x70002000, dtype=np.int32)  # sign, exponent and fraction, without the sign's copies
_HALF_OFFSET: Final = 2.0**112

# NumPy takes a dtype faster than the type it stands for.
_INT32: Final = np.dtype(np.int32)
_UINT32: Final = np.dtype(np.uint32)
_FLOAT32: Final = np.dtype(np.float32)


def scale_path(path: AnyPath) -> AnyPath:
    """Where the row scales of an int8 table lie: `NAME.scale.npy` beside `NAME.npy`."""
    return path.with_suffix(".scale.npy")


def write_table(path: Path, rows: npt.NDArray[np.float32], dtype: TableDtype = "float16") -> list[Path]:
    """Write `rows`, shape (V, D), as `.npy`, and return the files written.

    An int8 table gets a second file with one float32 scale per row, shape (V,): `row = int8 * scale`, and no value
    is off by more than half a scale. Raises BundleError for a shape that is no table, a value that isn't finite,
    and a value that float16 can't hold, and DiskError when the disk does not take it.
    """
    if dtype not in get_args(TableDtype):
        raise BundleError(
            f'{path.name}: unknown table dtype "{dtype}".', remedy=f"Use one of {', '.join(get_args(TableDtype))}."
        )
    if rows.ndim != 2 or 0 in rows.shape:
        raise BundleError(f"{path.name}: a token table has shape (V, D), found {rows.shape}.")
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
    if dtype != "int8":
        return [path]
    with writing(scale_path(path)):
        np.save(scale_path(path), scales)
    return [path, scale_path(path)]


class TokenTable:
    """A token table on disk, memory-mapped: opening it reads nothing but the header, a lookup only its rows."""

    def __init__(self, rows: npt.NDArray[np.generic], scales: npt.NDArray[np.float32] | None) -> None:
        rows = np.asarray(rows)  # a view of the map; indexing a memmap itself costs several times as much
        self._rows = rows.view(np.int16) if rows.dtype == np.float16 else rows
        self._scales = scales
        self.shape: tuple[int, int] = (rows.shape[0], rows.shape[1])
        self.dtype: TableDtype = _table_dtype(rows.dtype)
        self._halves = self.dtype == "float16"

    @classmethod
    def open(cls, path: Path) -> "TokenTable":
        """Map the table `path`, and the scales beside it when it is int8.

        Raises BundleError when a file is missing or no `.npy`, or when shapes or types are not those of a table.
        """
        path = Path(path)
        rows = _map(path)
        if rows.ndim != 2 or 0 in rows.shape:
            raise BundleError(f"{path}: a token table has shape (V, D), found {rows.shape}.")
        if rows.dtype.name not in get_args(TableDtype):
            expected = ", ".join(get_args(TableDtype))
            raise BundleError(f"{path}: the rows are {rows.dtype.name}, expected one of {expected}.")
        if rows.dtype != np.int8:
            return cls(rows, None)
        scales = _map(scale_path(path))
        if scales.shape != rows.shape[:1] or scales.dtype != np.float32:
            raise BundleError(
                f"{scale_path(path)}: expected {rows.shape[0]} float32 scales, one per row of {path.name}, "
                f"found {scales.dtype.name} of shape {scales.shape}."
            )
        return cls(rows, scales.astype(np.float32, copy=False))

    def rows(self, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """The rows E[t] of the token ids `ids`, shape (n,), as float32 of shape (n, D).

        Raises ValueError for an id outside 0..V-1.
        """
        stored = self._taken(ids)
        if self._halves:
            stored = stored.view(np.float16)
        rows: npt.NDArray[np.float32] = stored.astype(np.float32)
        if self._scales is not None:
            rows *= self._scales[ids][:, None]
        return rows

    def mean(self, ids: Ids) -> npt.NDArray[np.float32]:
        """`mean_i E[t_i]` over the token ids `ids`, n of them, as float32 of shape (D,), not normalised.

        A token that occurs twice counts twice. Raises ValueError for no ids, and for an id outside 0..V-1.
        """
        count = len(ids)
        if count == 0:
            raise ValueError("the mean of no token rows is undefined: the text has no tokens")
        rows = self._taken(ids)
        mean: npt.NDArray[np.float32]
        if self._halves:
            mean = np.add.reduce(_floats(rows))
            mean *= _HALF_OFFSET / count
            return mean
        mean = np.add.reduce(rows) if self._scales is None else np.einsum("t,td->d", self._scales.take(ids), rows)
        mean *= 1.0 / count
        return mean

    def means(self, ids: npt.NDArray[np.integer], lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """The `mean` of each of q queries, float32 (q, D); of many queries faster than one by one.

        ids: (n,), the token ids of the first query, of the second, and so on. lengths: (q,), how many each has. The
        means have the same bits as those of `mean`; of an int8 table they may differ by rounding. Takes memory for
        the rows of all different ids as float32. Errors as in `mean`.
        """
        if lengths.size and lengths.min() < 1:
            raise ValueError("the mean of no token rows is undefined: a text has no tokens")
        if ids.size and not 0 <= ids.min() <= ids.max() < self.shape[0]:
            raise self._outside(ids)
        used = np.flatnonzero(np.bincount(ids))
        rows = self.rows(used)  # each is needed many times
        places = np.zeros(self.shape[0], dtype=np.intp)
        places[used] = np.arange(used.size)
        found = places.take(ids)
        means = np.empty((lengths.size, self.shape[1]), dtype=np.float32)
        start = 0
        for length, total in zip(lengths.tolist(), means, strict=True):
            np.add.reduce(rows.take(found[start : start + length], axis=0), axis=0, out=total)
            start += length
        means *= (1.0 / lengths).astype(np.float32)[:, None]
        return means

    def _taken(self, ids: Ids) -> npt.NDArray[Any]:
        """The stored rows (n, D). A query waits for this, so what is no error is not looked at twice."""
        places = ids
        if ids.dtype == _INT32:
            places = ids.view(_UINT32)  # what is below 0 lies outside then
        elif ids.size and ids.min() < 0:
            raise self._outside(ids)
        try:
            return self._rows.take(places, 0)
        except IndexError:
            raise self._outside(ids) from None

    def _outside(self, ids: Ids) -> ValueError:
        outside = next(number for number in ids if not 0 <= number < self.shape[0])
        return ValueError(f"token id {outside} is outside the table's 0..{self.shape[0] - 1}")


def _floats(halves: npt.NDArray[np.int16]) -> npt.NDArray[np.float32]:
    """The float16 values that have these bits, divided by 2^112, as float32 of the same shape.

    NumPy turns float16 into float32 number by number, which takes longer than all the rest of a mean. Moving bits is
    done for many at once. For finite values, and a table holds no others.
    """
    bits = halves.astype(_INT32)
    np.left_shift(bits, _HALF_SHIFT, bits)
    np.bitwise_and(bits, _HALF_BITS, bits)
    return bits.view(_FLOAT32)


def _check_values(path: Path, values: npt.NDArray[np.float32], dtype: TableDtype, start: int) -> None:
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


def _quantise(values: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Symmetric int8 with one scale per row: `scale = max|row| / 127`. Shapes (n, D) and (n,)."""
    # The smallest normal number keeps rows of zeros (and of subnormals) from dividing by zero.
    scales = np.maximum(np.abs(values).max(axis=1) / np.float32(_INT8_LIMIT), np.finfo(np.float32).tiny)
    quantised = np.rint(values / scales[:, None]).clip(-_INT8_LIMIT, _INT8_LIMIT)
    return quantised.astype(np.int8), scales.astype(np.float32)


def _map(path: Path) -> npt.NDArray[np.generic]:
    try:
        array: npt.NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise BundleError(f"{path}: the file is missing.", remedy="Fetch or build the bundle again.") from error
    except UNREADABLE as error:
        raise BundleError(f"{path}: not a NumPy array: {error}.", remedy="Fetch or build the bundle again.") from error
    return array


def _table_dtype(dtype: np.dtype[np.generic]) -> TableDtype:
    for name in get_args(TableDtype):
        if dtype.name == name:
            known: TableDtype = name
            return known
    raise ValueError(f"{dtype.name} is no type of a token table")
