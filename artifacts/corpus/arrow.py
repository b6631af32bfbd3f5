"""Reads Parquet and Arrow files as rows of JSON values, and zstd, by pyarrow (extra `import`)."""

import math
from collections.abc import Collection, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import IO, Any, Final
from uuid import UUID

import numpy as np

from lightretriever.artifacts.errors import importing

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
    with importing("import"):
        import pyarrow
    return pyarrow


def _rows(batches: Any, names: list[str]) -> _Rows:
    number = 0
    for batch in batches:
        columns = [(name, _microseconds(batch.column(name))) for name in names]
        for position in range(batch.num_rows):
            number += 1
            yield f"row {number}", _row(columns, position)


def _microseconds(column: Any) -> Any:
    """The column with times as Python has them: without nanoseconds, which no field has, and in UTC where they have a
    zone. Python's own types lack nanoseconds, so that pyarrow would ask for pandas."""
    types = _pyarrow().types
    if types.is_run_end_encoded(column.type):
        import pyarrow.compute

        column = pyarrow.compute.run_end_decode(column)
    if types.is_list_view(column.type) or types.is_large_list_view(column.type):  # pyarrow can't cast these
        values = _microseconds(column.values)
        return type(column).from_arrays(column.offsets, column.sizes, values, mask=column.is_null())
    kind = _without_nanoseconds(column.type)
    return column if kind == column.type else column.cast(kind, safe=False)


def _without_nanoseconds(kind: Any) -> Any:
    pyarrow = _pyarrow()
    is_kind, inner = pyarrow.types, _without_nanoseconds
    if is_kind.is_timestamp(kind):
        return pyarrow.timestamp("us" if kind.unit == "ns" else kind.unit, kind.tz and "UTC")
    if is_kind.is_time64(kind):
        return pyarrow.time64("us")
    if is_kind.is_duration(kind):
        return pyarrow.duration("us" if kind.unit == "ns" else kind.unit)
    if is_kind.is_dictionary(kind):
        return inner(kind.value_type)
    if is_kind.is_fixed_size_list(kind):
        return pyarrow.list_(kind.value_field.with_type(inner(kind.value_type)), kind.list_size)
    for test, make in ((is_kind.is_list, pyarrow.list_), (is_kind.is_large_list, pyarrow.large_list)):
        if test(kind):
            return make(kind.value_field.with_type(inner(kind.value_type)))
    if is_kind.is_map(kind):
        return pyarrow.map_(inner(kind.key_type), kind.item_field.with_type(inner(kind.item_type)))
    if is_kind.is_struct(kind):
        return pyarrow.struct([field.with_type(inner(field.type)) for field in kind.fields])
    return kind


def _row(columns: list[tuple[str, Any]], position: int) -> dict[str, Any] | ValueError:
    row: dict[str, Any] = {}
    for name, column in columns:
        try:
            row[name] = _plain(column[position].as_py(maps_as_pydicts="strict"), column.type)
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            return ValueError(f'column "{name}": {error}; mend it, or leave the column out by --drop')
    return row


def _plain(value: Any, kind: Any) -> Any:
    """A value of an Arrow type as JSON has it. NaN, by which pandas says that there is no value, is none."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return _shortest(value, kind)
        case Decimal():
            return _number(value)
        case datetime() | date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case list():
            return [_plain(item, _inner(kind)) for item in value]
        case dict():
            return {_key(name): _plain(item, _inner(kind, name)) for name, item in value.items()}
        case bytes():
            raise ValueError(f"{len(value):,} bytes are no text ({value[:8]!r}…)")
    raise ValueError(f"{type(value).__name__} has no form in JSON ({value!r:.80})")


def _inner(kind: Any, name: str | None = None) -> Any:
    """The type of a list's items, of a map's values, or of the field `name` of a struct."""
    kind = _stored(kind)
    if _pyarrow().types.is_map(kind):
        return kind.item_type
    return kind.value_type if name is None else kind.field(name).type


def _stored(kind: Any) -> Any:
    if isinstance(kind, _pyarrow().BaseExtensionType):
        kind = kind.storage_type
    return kind.value_type if _pyarrow().types.is_dictionary(kind) else kind


def _shortest(value: float, kind: Any) -> float | None:
    """The number that has the fewest digits of all that its type can't tell apart: 0.1 where a float32 holds
    0.10000000149011612. It is what was written into the column, and what a filter asks for."""
    if math.isinf(value):
        raise ValueError(f"{value!r} is no number of JSON")
    if math.isnan(value):
        return None
    kind, types = _stored(kind), _pyarrow().types
    if types.is_float16(kind):
        return float(str(np.float16(value)))
    return float(str(np.float32(value))) if types.is_float32(kind) else value


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
