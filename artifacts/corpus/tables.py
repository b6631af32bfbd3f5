"""Rows of tables, read by DuckDB (extra `import`): CSV, Parquet and JSON; CSV and JSON may be packed by gzip.

A file is known by its first bytes. DuckDB guesses nothing: the dialect of CSV comes from the name and the options, its
cells are texts, and JSON is read by the reader of documents.
"""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from lightretriever.artifacts.corpus.lines import HEAD, kind_of
from lightretriever.artifacts.documents.bounds import MAX_DOCUMENT_BYTES
from lightretriever.artifacts.documents.strict_json import read_object
from lightretriever.artifacts.errors import CorpusError, importing, readable
from lightretriever.artifacts.files.reading import open_regular

Row = dict[str, Any]
Placed = tuple[str, Row | ValueError]
"""Where a row stands, such as `row 3`, and the row, or what is wrong with it."""
Opened = tuple[list[str] | None, Iterator[Placed]]
"""The columns of a file, None where each row names its own, as in JSON, and its rows."""

_BLANK: Final = " \t\r\n\x1a"
"""Characters of a line that is no row: blanks, and the end of a file of DOS."""
_ROWS: Final = 256
"""Rows in memory at a time."""
_MAX_DIGITS: Final = 38
"""Digits of a decimal that DuckDB keeps; it rounds longer ones to a float."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a CSV file is written.

    `delimiter` separates cells; None is the tab in a file called `.tsv`, and else the comma. `quote` stands around
    cells; none if it is empty, and None is `"`, but none between tabs. With `header`, the first line names the columns;
    `columns` are names in place of its own, and without a header the only ones.
    """

    delimiter: str | None = None
    quote: str | None = None
    header: bool = True
    columns: tuple[str, ...] = ()


DEFAULT_DIALECT: Final = Dialect()
"""The dialect that nothing is said of."""


def table_files(source: Path) -> tuple[list[Path], int] | None:
    """Return the files that the rows of `source` lie in, in order, and the number of entries beside them.

    `source` is a file, or a folder with Parquet files in it. None for any other folder.
    """
    if not source.is_dir():
        return [source], 0
    try:
        entries = sorted(source.iterdir())
    except OSError:  # whoever reads its texts says why
        return None
    files = [entry for entry in entries if not entry.name.startswith(".") and _is_parquet(entry)]
    return (files, len(entries) - len(files)) if files else None


@contextmanager
def open_table(path: Path, dialect: Dialect, drop: Collection[str]) -> Iterator[Opened]:
    """Open a file of rows; a Parquet file's columns of `drop` are not read.

    Raise CorpusError for a file that can't be read, here or from its rows, and MissingExtraError without DuckDB.
    """
    with importing("import"):
        import duckdb
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    settings: dict[str, Any] = {"threads": 1, "TimeZone": "UTC", "autoinstall_known_extensions": False}
    try:
        with open_regular(path) as file, duckdb.connect(config=settings) as database:
            yield _opened(path, file, database, dialect, drop)
    except (OSError, EOFError, TypeError, ValueError, csv.Error, zlib.error, duckdb.Error) as error:
        what = str((isinstance(error, OSError) and error.strerror) or error).strip().split("\n")[0]
        message = (what.partition(" Error: ")[2] or what)[:300].rstrip(".")
        raise CorpusError(
            f"{readable(path)}: can't be read: {message}.", remedy="Mend it, or fetch it again."
        ) from error


def _is_parquet(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            kind = kind_of(file.read(HEAD))
    except OSError:  # a folder, a pipe, or what may not be read
        return False
    return kind is not None and kind.name == "Parquet"


def _opened(path: Path, file: io.BufferedReader, database: Any, dialect: Dialect, drop: Collection[str]) -> Opened:
    """Open a file, which DuckDB knows by its descriptor: a path may have the signs of a pattern."""
    options: dict[str, Any] = {"file": f"/dev/fd/{file.fileno()}", "compression": "none"}
    head = file.read(HEAD)
    file.seek(0)
    unpacked: Any = file
    if head.startswith(b"\x1f\x8b"):
        options["compression"] = "gzip"
        unpacked = gzip.GzipFile(fileobj=file)
        head = unpacked.read(HEAD)
        unpacked.seek(0)
    kind = kind_of(head)
    name = "" if kind is None else kind.name
    if name == "Parquet" and unpacked is file:
        return _parquet(database, options["file"], drop)
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if name in ("one JSON array", "JSON over several lines") or (kind is None and first == b"{"):
        layout = "array" if first == b"[" else "unstructured" if kind is not None else "newline_delimited"
        return None, _json(database, {**options, "format": layout, "ignore_errors": kind is None})
    if kind is not None:
        packed = "" if unpacked is file else " packed by gzip"
        remedy = "Unpack it by `gzip -d`." if packed else kind.remedy
        raise CorpusError(f"{readable(path)}: this is {name}{packed}, which is not read.", remedy=remedy)
    delimiter = dialect.delimiter or ("\t" if ".tsv" in map(str.lower, path.suffixes) else ",")
    quote = dialect.quote if dialect.quote is not None else "" if delimiter == "\t" else '"'
    names = _csv_names(unpacked, dialect, delimiter, quote)
    options |= {"delim": delimiter, "quote": quote, "escape": quote, "header": dialect.header}
    options |= {"columns": {f"c{number}": "VARCHAR" for number in range(len(names))}}
    return names, _csv(database, options, names)


def _read(database: Any, function: str, options: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The rows that a function of DuckDB reads."""
    named = ", ".join(f"{name} = ${name}" for name in options if name != "file")
    yield from _rows(database.execute(f"SELECT * FROM {function}($file, {named})", options))


def _rows(result: Any) -> Iterator[tuple[Any, ...]]:
    while rows := result.fetchmany(_ROWS):
        yield from rows


def _json(database: Any, options: dict[str, Any]) -> Iterator[Placed]:
    """The objects of a file, each read as a document is; DuckDB finds where they end."""
    options |= {"maximum_object_size": MAX_DOCUMENT_BYTES}
    for number, (text,) in enumerate(_read(database, "read_json_objects", options), 1):
        try:
            if text is None:
                raise ValueError("not JSON")
            yield f"row {number}", read_object(text.encode())
        except ValueError as error:
            yield f"row {number}", error


def _csv_names(file: Any, dialect: Dialect, delimiter: str, quote: str) -> list[str]:
    """The names of the columns: those of the dialect, or of the first line."""
    quoting: dict[str, Any] = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    text = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
    cells = next(csv.reader(text, delimiter=delimiter, skipinitialspace=True, **quoting), [])
    text.detach()
    if not "".join(cells).strip(_BLANK):
        raise ValueError("its first line is empty")
    try:
        "".join(cells).encode()
    except UnicodeEncodeError as error:
        raise ValueError("line 1: This file is not utf-8 encoded") from error
    if dialect.columns and len(dialect.columns) != len(cells):
        raise ValueError(f"{len(dialect.columns)} columns are named, but its first line has {len(cells)} cells")
    header = [cell.strip() if dialect.header else "" for cell in cells]
    names = list(dialect.columns) or [name or f"column {number}" for number, name in enumerate(header, 1)]
    if twice := sorted(name for name in names if names.count(name) > 1):
        raise ValueError(f'two columns have the name "{twice[0]}"; rename one, or name all by --columns')
    return names


def _csv(database: Any, options: dict[str, Any], names: list[str]) -> Iterator[Placed]:
    """The rows, and behind them the lines that are none."""
    options |= {"auto_detect": False, "comment": "", "max_line_size": MAX_DOCUMENT_BYTES, "store_rejects": True}
    number = 0
    for cells in _read(database, "read_csv", options):
        if len(cells) > 1 or (cells[0] or "").strip(_BLANK):
            number += 1
            yield f"row {number}", dict(zip(names, cells, strict=True))
    rejected = database.execute(
        "SELECT line, any_value(error_type), any_value(csv_line), any_value(error_message) FROM reject_errors "
        "GROUP BY line ORDER BY line"
    )
    for line, kind, text, message in rejected.fetchall():
        if kind == "UNQUOTED VALUE":
            raise ValueError(f"line {line}: {message.rstrip('.')}; if quotes are signs as others, pass --quote none")
        if text.strip(_BLANK):
            yield f"line {line}", ValueError(message.rstrip("."))


def _parquet(database: Any, file: str, drop: Collection[str]) -> Opened:
    """The columns of a Parquet file. Raise ValueError for a type or a name that DuckDB would change."""
    query = "SELECT name, coalesce(precision, 0) FROM parquet_schema($file)"
    schema = database.execute(query, {"file": file}).fetchall()
    for name, digits in schema:
        if digits > _MAX_DIGITS and name not in drop:
            raise ValueError(f'column "{name}" has decimals of {digits} digits, of which {_MAX_DIGITS} are read')
    schema_names = {name for name, _ in schema}
    source = "read_parquet($file, hive_partitioning = false, union_by_name = false)"
    columns = database.execute(f"SELECT * FROM {source} LIMIT 0", {"file": file}).description
    names, selected = [name for name, *_ in columns], list[str]()
    for name, kind, *_ in columns:
        if name not in schema_names:  # DuckDB has given it this name
            raise ValueError(f'two columns have the name "{name.rpartition("_")[0]}", apart from capitals; rename one')
        if name in drop:
            continue
        quoted = '"' + name.replace('"', '""') + '"'
        if kind.id.startswith(("date", "timestamp")):
            quoted = f"CASE WHEN isinf({quoted}) THEN error('infinite {kind.id}, which JSON lacks') ELSE {quoted} END"
        selected.append(quoted)
    kept = [name for name in names if name not in drop]
    result = database.execute(f"SELECT {', '.join(selected) or 'NULL'} FROM {source}", {"file": file})
    return names, _parquet_rows(result, kept)


def _parquet_rows(result: Any, names: Sequence[str]) -> Iterator[Placed]:
    for number, values in enumerate(_rows(result), 1):
        row, name = Row(), ""
        try:
            for name, value in zip(names, values, strict=False):
                row[name] = _plain(value)
        except ValueError as error:
            problem = ValueError(f'column "{name}": {error}; mend it, or leave the column out by --drop')
            yield f"row {number}", problem
        else:
            yield f"row {number}", row


def _plain(value: Any) -> Any:
    """Return a value of DuckDB as JSON has it. NaN, by which pandas says that there is no value, is none."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if math.isinf(value):
                raise ValueError(f"{value!r} is no number of JSON")
            return None if math.isnan(value) else value
        case Decimal():
            if value == value.to_integral_value():
                return int(value)
            if Decimal(repr(float(value))) != value:
                raise ValueError(f"{value} has more digits than a number of JSON keeps")
            return float(value)
        case datetime() | date() | time():
            return value.isoformat()
        case UUID():
            return str(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            if other := [name for name in value if not isinstance(name, str)]:
                raise ValueError(f"a key must be a text, found {other[0]!r:.80}")
            return {name: _plain(item) for name, item in value.items()}
        case bytes():
            raise ValueError(f"{len(value):,} bytes are no text ({value[:8]!r}…)")
    raise ValueError(f"{type(value).__name__} has no form in JSON ({value!r:.80})")
