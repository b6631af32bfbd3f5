"""Reads Parquet and Arrow files as rows of JSON values, and zstd, by pyarrow (extra `import`)."""

import math
from collections.abc import Collection, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import IO, Any, Final
from uuid import UUID

from lightretriever.artifacts.errors import MissingExtraError

__all__ = ["arrow_table", "parquet_table", "zstd_stream"]

_ROWS: Final = 256
"""Rows in memory at a time."""
_BUFFER: Final = 1 << 20

_Rows = Iterator[tuple[str, dict[str, Any] | ValueError]]


def parquet_table(file: IO[bytes], drop: Collection[str]) -> tuple[list[str], _Rows]:
    """The columns of a Parquet file, and its rows without the columns `drop`. Raises ValueError and OSError."""
    _pyarrow()
    import pyarrow.parquet

    found = pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)  # else it reads whole columns
    names = found.schema_arrow.names
    kept = [name for name in names if name not in drop]
    return names, _rows(found.iter_batches(_ROWS, columns=kept), kept)


def arrow_table(file: IO[bytes], drop: Collection[str]) -> tuple[list[str], _Rows]:
    """The same of an Arrow file, or of a stream of one, as `datasets` saves it."""
    pyarrow = _pyarrow()
    if file.read(6) == b"ARROW1":
        found = pyarrow.ipc.open_file(file)
        batches = (found.get_batch(number) for number in range(found.num_record_batches))
    else:
        file.seek(0)
        batches = found = pyarrow.ipc.open_stream(file)
    names = found.schema.names
    return names, _rows(batches, [name for name in names if name not in drop])


def zstd_stream(file: IO[bytes]) -> Any:
    """The unpacked bytes of a file. Reading raises OSError for a damaged one."""
    return _pyarrow().CompressedInputStream(file, "zstd")


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ModuleNotFoundError as error:
        raise MissingExtraError.of(error, "import") from error
    return pyarrow


def _rows(batches: Any, names: list[str]) -> _Rows:
    number = 0
    for batch in batches:
        columns = [(name, _microseconds(batch.column(name))) for name in names]
        for place in range(batch.num_rows):
            number += 1
            yield f"row {number}", _row(columns, place)


def _microseconds(column: Any) -> Any:
    """Times as Python has them: without nanoseconds, which no field has, and in UTC where they have a zone."""
    pyarrow = _pyarrow()
    if not pyarrow.types.is_timestamp(column.type):
        return column
    zone = column.type.tz and "UTC"
    return column.cast(pyarrow.timestamp("us", zone), safe=False)


def _row(columns: list[tuple[str, Any]], place: int) -> dict[str, Any] | ValueError:
    row: dict[str, Any] = {}
    for name, column in columns:
        try:
            row[name] = _plain(column[place].as_py(maps_as_pydicts="strict"))
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            return ValueError(f'column "{name}": {error}; mend it, or leave the column out by --drop')
    return row


def _plain(value: Any) -> Any:
    """A value as JSON has it. NaN, by which pandas says that there is no value, is none."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isinf(value):
                raise ValueError(f"{value!r} is no number of JSON")
            return None if math.isnan(value) else value
        case Decimal():
            return _number(value)
        case datetime() | date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case list():
            return [_plain(one) for one in value]
        case dict():
            return {_key(name): _plain(one) for name, one in value.items()}
        case bytes():
            raise ValueError(f"{len(value):,} bytes are no text ({value[:8]!r}…)")
    raise ValueError(f"{type(value).__name__} has no form in JSON ({value!r:.80})")


def _number(value: Decimal) -> int | float | None:
    if value.is_nan():
        return None
    if value == value.to_integral_value():
        return int(value)
    if Decimal(repr(float(value))) != value:
        raise ValueError(f"{value} has more digits than a number of JSON keeps")
    return float(value)


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"a key must be a text, found {name!r:.80}")
    return name
