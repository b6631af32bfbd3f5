"""Rows of tables, read by DuckDB (extra `import`): CSV, Parquet and JSON; CSV and JSON may be packed by gzip.

A file is known by its first bytes. DuckDB guesses nothing: the dialect of CSV comes from the first two lines and the
options, its cells are texts, and JSON is read by the reader of documents.
"""

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import numpy as np

from lightretriever.artifacts.corpus.lines import HEAD, kind_of
from lightretriever.artifacts.documents.bounds import MAX_DOCUMENT_BYTES
from lightretriever.artifacts.documents.strict_json import read_object
from lightretriever.artifacts.errors import CorpusError, importing, readable
from lightretriever.artifacts.files.reading import open_regular

__all__ = ["DEFAULT_DIALECT", "Dialect", "Placed", "Row", "open_table", "table_files"]

Row = dict[str, Any]
Placed = tuple[str, Row | ValueError]
"""Where a row stands, such as `row 3`, and the row, or what is wrong with it."""
Opened = tuple[list[str] | None, Iterator[Placed]]
"""The columns of a file, None where each row names its own, as in JSON, and its rows."""

_DELIMITERS: Final = "\t,;|"
_NO_DELIMITER: Final = "\x1f"
"""What a table of one column is read with: a sign that no text has."""
_SEPARATOR_LINE: Final = re.compile(r'"?sep=(.)"?[ \t]*(\r\n|\r|\n|$)', re.IGNORECASE)
_HEAD: Final = 1 << 20
"""Bytes that have the header and the first row."""
_HALF: Final = re.compile("[\ud800-\udfff]")
_NOT_UTF8: Final = "not UTF-8; convert it, as by `iconv -f WINDOWS-1252 -t UTF-8`"
_BLANK: Final = " \t\r\n\x1a"
"""Signs of a line that is no row: blanks, and the end of a file of DOS."""
_ROWS: Final = 256
"""Rows in memory at a time."""
_MAX_DIGITS: Final = 38
"""Digits of a decimal that DuckDB keeps; it rounds longer ones to a float."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a CSV file is written.

    `delimiter` separates cells; None finds it in the first two lines. `quote` stands around cells; none if it is empty,
    and None is `"`, but none between tabs. With `header`, the first line names the columns; `columns` are names in
    place of its own, and without a header the only ones.
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
            yield _File(path, file, database).table(dialect, drop)
    except (OSError, EOFError, ValueError, csv.Error, zlib.error, duckdb.Error) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CorpusError:
    system = isinstance(error, OSError) and error.strerror
    what = str(system or error).strip().split("\n")[0].partition(" Error: ")
    return CorpusError(
        f"{readable(path)}: can't be read: {(what[2] or what[0])[:300].rstrip('.')}.",
        remedy="Mend it, or fetch it again.",
    )


def _is_parquet(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            kind = kind_of(file.read(HEAD))
    except OSError:  # a folder, a pipe, or what may not be read
        return False
    return kind is not None and kind.name == "Parquet"


class _File:
    """A file, named to DuckDB by its descriptor: a path may have signs of a pattern, or be another file by now."""

    def __init__(self, path: Path, file: io.BufferedReader, database: Any) -> None:
        self._path, self._file, self._database = path, file, database
        self._name = f"/dev/fd/{file.fileno()}"

    def table(self, dialect: Dialect, drop: Collection[str]) -> Opened:
        """Return the columns, if the file names them once, and the rows. Raise what DuckDB does, and CorpusError."""
        head, packing = self._file.read(_HEAD), "none"
        if head.startswith(b"\x1f\x8b"):
            self._file.seek(0)
            with gzip.GzipFile(fileobj=self._file) as file:
                head, packing = file.read(_HEAD), "gzip"
        kind = kind_of(head[:HEAD])
        name = "" if kind is None else kind.name
        if name == "Parquet" and packing == "none":
            return self._parquet(drop)
        if self._path.suffix.lower() in (".parquet", ".arrow", ".feather") and name != "Arrow":
            raise ValueError(f"it is called {self._path.suffix}, but doesn't begin as such a file")
        first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if name in ("one JSON array", "JSON over several lines") or (kind is None and first == b"{"):
            layout = "array" if first == b"[" else "unstructured" if kind is not None else "newline_delimited"
            return None, self._json(layout, packing)
        if kind is not None:
            inside = "" if packing == "none" else f" packed by {packing}"
            remedy = f"Unpack it by `{packing} -d`." if inside else kind.remedy
            raise CorpusError(f"{readable(self._path)}: this is {name}{inside}, which is not read.", remedy=remedy)
        return self._csv(head.decode("utf-8-sig", "surrogateescape"), dialect, packing)

    def _query(self, function: str, columns: Sequence[str], **options: Any) -> Any:
        """Return what a function of DuckDB reads. `columns` of CSV are texts, and a row that does not fit is noted in
        the table reject_errors."""
        if columns:
            texts = "{" + ", ".join(f"'{name}': 'VARCHAR'" for name in columns) + "}"
            options |= {"auto_detect": False, "comment": "", "max_line_size": MAX_DOCUMENT_BYTES, "store_rejects": True}
            self._database.execute("DROP TABLE IF EXISTS reject_errors; DROP TABLE IF EXISTS reject_scans")
        else:
            texts = ""
        named = [f"{name} = ${name}" for name in options] + ([f"columns = {texts}"] if texts else [])
        return self._database.execute(
            f"SELECT * FROM {function}($file, {', '.join(named)})", {"file": self._name, **options}
        )

    def _json(self, layout: str, packing: str) -> Iterator[Placed]:
        """The objects of a file, each read as a document is; DuckDB finds where they end."""
        found = self._query(
            "read_json_objects",
            (),
            format=layout,
            compression=packing,
            maximum_object_size=MAX_DOCUMENT_BYTES,
            ignore_errors=layout == "newline_delimited",
        )
        for number, (text,) in enumerate(_rows(found), 1):
            try:
                if text is None:
                    raise ValueError("not JSON")
                yield f"row {number}", read_object(text.encode())
            except ValueError as error:
                yield f"row {number}", error

    def _csv(self, head: str, dialect: Dialect, packing: str) -> tuple[list[str], Iterator[Placed]]:
        said = _SEPARATOR_LINE.match(head)  # as Excel writes and reads it
        text = head[said.end() :] if said else head
        if not re.match(r"[ \t]*[^ \t\r\n\x1a]", text):
            raise ValueError(
                "it has no line but the one that names the delimiter" if said else "its first line is empty"
            )
        delimiter = dialect.delimiter or (said[1] if said else _delimiter(text, dialect.quote))
        quote = dialect.quote if dialect.quote is not None else "" if delimiter == "\t" else '"'
        cells = next(_parsed(text, delimiter, quote))
        if any(_HALF.search(cell) for cell in cells):
            raise ValueError(f"line 1: {_NOT_UTF8}")
        names = list(dialect.columns)
        if names and len(names) != len(cells):
            raise ValueError(f"{len(names)} columns are named, but its first line has {len(cells)} cells")
        own = [cell.strip() if dialect.header else "" for cell in cells]
        names = names or [name or f"column {number}" for number, name in enumerate(own, 1)]
        found = self._query(
            "read_csv",
            [f"c{number}" for number in range(len(names))],
            header=dialect.header,
            skip=1 if said else 0,
            delim=delimiter,
            quote=quote,
            escape=quote,
            compression=packing,
        )
        return names, self._csv_rows(found, names)

    def _csv_rows(self, found: Any, names: list[str]) -> Iterator[Placed]:
        """The rows, and behind them the lines that are none."""
        number = 0
        for cells in _rows(found):
            if len(cells) > 1 or (cells[0] or "").strip(_BLANK):
                number += 1
                yield f"row {number}", dict(zip(names, cells, strict=True))
        rejected = self._database.execute(
            "SELECT line, any_value(error_type), any_value(csv_line), any_value(error_message) FROM reject_errors "
            "GROUP BY line ORDER BY line"
        )
        for line, kind, text, message in rejected.fetchall():
            if kind == "UNQUOTED VALUE":
                raise ValueError(
                    f"line {line}: {message.rstrip('.')}; if quotes are signs as others, pass --quote none"
                )
            if kind == "INVALID ENCODING":
                message = _NOT_UTF8
            if text.strip(_BLANK):
                yield f"line {line}", ValueError(message.rstrip("."))

    def _parquet(self, drop: Collection[str]) -> tuple[list[str], Iterator[Placed]]:
        schema = self._database.execute(
            "SELECT name, coalesce(num_children, 0), coalesce(precision, 0) FROM parquet_schema($file)",
            {"file": self._name},
        ).fetchall()
        names = _top_level(schema)
        for name, _, digits in schema:
            if digits > _MAX_DIGITS and name not in drop:
                raise ValueError(f'column "{name}" has decimals of {digits} digits, of which {_MAX_DIGITS} are read')
        source = "read_parquet($file, hive_partitioning = false, union_by_name = false)"
        described = self._database.execute(f"SELECT * FROM {source} LIMIT 0", {"file": self._name}).description
        kept = [
            (name, _quoted(column), kind)
            for name, (column, kind, *_) in zip(names, described, strict=True)
            if name not in drop
        ]
        endless = [f"isinf({column})" for _, column, kind in kept if kind.id.startswith(("date", "timestamp"))]
        selected = ", ".join(
            [*(column for _, column, _ in kept), f"coalesce(greatest({', '.join([*endless, 'false'])}), false)"]
        )
        found = self._database.execute(f"SELECT {selected} FROM {source}", {"file": self._name})
        return names, _parquet_rows(found, [(name, kind) for name, _, kind in kept])


def _rows(found: Any) -> Iterator[tuple[Any, ...]]:
    while rows := found.fetchmany(_ROWS):
        yield from rows


def _parsed(text: str, delimiter: str, quote: str) -> Iterator[list[str]]:
    """The cells of the first records of a CSV text."""
    quoting: dict[str, Any] = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, **quoting)


def _delimiter(text: str, quote: str | None) -> str:
    """The sign that gives the first two records as many cells, and the most; else the first in the header."""
    best, most = _NO_DELIMITER, 1
    for sign in _DELIMITERS:
        records = _parsed(text, sign, quote if quote is not None else "" if sign == "\t" else '"')
        cells = [len(record) for record in islice(filter(None, records), 2)]
        if cells[0] > most and len(set(cells)) == 1:
            best, most = sign, cells[0]
    first = re.match(rf"[^\r\n]*?([{_DELIMITERS}])", text)
    return first[1] if most == 1 and first else best


def _top_level(schema: Sequence[tuple[str, int, int]]) -> list[str]:
    """The names of a Parquet file's columns. Its schema lists each part of a column behind it."""
    names, inside = [], 0
    for name, children, _ in schema[1:]:
        if inside == 0:
            names.append(name)
        inside = max(inside - 1, 0) + children
    return names


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _parquet_rows(found: Any, columns: Sequence[tuple[str, Any]]) -> Iterator[Placed]:
    for number, (*values, endless) in enumerate(_rows(found), 1):
        row: Row = {}
        try:
            if endless:
                raise ValueError("a date or time is infinite; mend it, or leave its column out by --drop")
            for (name, kind), value in zip(columns, values, strict=True):
                try:
                    row[name] = _plain(value, kind)
                except ValueError as error:
                    raise ValueError(f'column "{name}": {error}; mend it, or leave the column out by --drop') from error
        except ValueError as error:
            yield f"row {number}", error
        else:
            yield f"row {number}", row


def _plain(value: Any, kind: Any) -> Any:
    """Return a value of a DuckDB type as JSON has it. NaN, by which pandas says that there is no value, is none."""
    match value:
        case str() if kind is not None and kind.id.startswith(("date", "timestamp")):
            raise ValueError(f"{value} is outside the years 1 to 9999")
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
        case list() | tuple():
            return [_plain(item, _inner(kind, "child")) for item in value]
        case dict():
            is_map = kind is not None and kind.id == "map"
            return {_key(name): _plain(item, _inner(kind, "value" if is_map else name)) for name, item in value.items()}
        case bytes():
            raise ValueError(f"{len(value):,} bytes are no text ({value[:8]!r}…)")
    raise ValueError(f"{type(value).__name__} has no form in JSON ({value!r:.80})")


def _inner(kind: Any, name: str) -> Any:
    """Return the type of a list's items, of a map's values, or of a struct's field; None for other types."""
    return dict(kind.children).get(name) if kind is not None and kind.id in ("list", "array", "map", "struct") else None


def _shortest(value: float, kind: Any) -> float | None:
    """Return the number that has the fewest digits of all that its type can't tell apart: 0.1 where a float32 holds
    0.10000000149011612. It is what was written into the column, and what a filter asks for."""
    if math.isinf(value):
        raise ValueError(f"{value!r} is no number of JSON")
    if math.isnan(value):
        return None
    return float(str(np.float32(value))) if kind is not None and kind.id == "float" else value


def _number(value: Decimal) -> int | float:
    if value == value.to_integral_value():
        return int(value)
    if Decimal(repr(float(value))) != value:
        raise ValueError(f"{value} has more digits than a number of JSON keeps")
    return float(value)


def _key(name: Any) -> str:
    if not isinstance(name, str):
        raise ValueError(f"a key must be a text, found {name!r:.80}")
    return name
