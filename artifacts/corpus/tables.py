"""A corpus of the rows of tables, read by DuckDB (extra `import`): CSV, Parquet and JSON; CSV and JSON may be packed by
gzip.

A file is known by its first bytes. DuckDB guesses nothing: the dialect of CSV comes from the name and the options, its
cells are texts, and JSON is read by the reader of documents.
"""

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from lightretriever.artifacts.corpus.beir import Written, new_corpus
from lightretriever.artifacts.corpus.lines import GZIP, HEAD, kind_of
from lightretriever.artifacts.documents.bounds import MAX_DOCUMENT_BYTES
from lightretriever.artifacts.documents.document import read_document, read_object, serialised
from lightretriever.artifacts.errors import CorpusError, importing, readable
from lightretriever.artifacts.files.reading import open_regular
from lightretriever.artifacts.reports import tracked

Row = dict[str, Any]
Rows = Iterator[tuple[str, Row | ValueError]]
"""Where each row stands, such as `row 3`, and the row, or what is wrong with it."""

_BLANK: Final = " \t\r\n\x1a"  # characters of a line that is no row; the last one ends a file of DOS
_ROWS: Final = 256  # in memory at a time
_MAX_DIGITS: Final = 38  # of a decimal that DuckDB keeps; it rounds longer ones to a float
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_NAMED: Final = 30
_COLUMNS: Final = "See --id, --title and --text, and --delimiter and --columns of CSV."


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


@dataclass(frozen=True, slots=True)
class Columns:
    """Says which columns are id, title and text. Without `id`, it is the column `_id`, else the number of the row.

    Several of `text` are joined by a blank line. Those of `drop` are left out. Texts of `number` become numbers. All
    that are not named keep their names as fields, with their values; null is no value.
    """

    id: str | None = None
    title: str | None = None
    text: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    number: tuple[str, ...] = ()

    @property
    def named(self) -> list[str]:
        """All columns that are named."""
        return [name for name in (self.id, self.title, *self.text, *self.drop, *self.number) if name is not None]


def table_files(source: Path) -> list[Path]:
    """The files that the rows of `source` lie in: the file itself, or those called *.parquet in a folder."""
    return [source] if not source.is_dir() else sorted(source.glob("[!.]*.parquet"))


def write_row_corpus(
    files: list[Path],
    output: Path,
    columns: Columns,
    dialect: Dialect,
    *,
    skip_bad: bool = False,
    overwrite: bool = False,
) -> Written:
    """Write the rows of `files`, in their order, as a corpus in BEIR layout, whole or not at all. `dialect` is that of
    CSV.

    Raises CorpusError for an output that is there already, for a table without a named column, and for a bad row: a
    null or repeated id, no text, bytes, a value that JSON lacks, or a document beyond the bounds of a corpus. With
    `skip_bad` bad rows are counted instead. Raises DiskError when the output can't be written.
    """
    written = Written(texts=len(files), rows=0)
    with new_corpus(output, overwrite=overwrite) as file:
        lines = _lines(files, columns, dialect, written, skip_bad=skip_bad)
        for line in tracked(lines, "corpus", total=None, unit="rows"):
            file.write(line + b"\n")
            written.documents += 1
        if not written.documents:
            reasons = [f" {reason}." for reason in written.skipped.reasons[:1]]
            what = f"{readable(files[0])}: no row became a document.{''.join(reasons)}"
            raise CorpusError(what, remedy="Give another table.")
    return written


def _lines(
    files: list[Path], columns: Columns, dialect: Dialect, written: Written, *, skip_bad: bool
) -> Iterator[bytes]:
    """The lines of the corpus; `written` counts rows and bad ones."""
    ids: dict[str, str] = {}
    names: set[str] = set()
    for path in files:
        for position, row in _rows_of(path, columns, dialect):
            written.rows = (written.rows or 0) + 1
            try:
                if isinstance(row, ValueError):
                    raise row
                if not ids:  # the first row decides for all
                    written.id_column = columns.id or ("_id" if "_id" in row else None)
                document = read_document(serialised(_record(row, columns, written)), {}, names)
                place = f"{path.name}, {position}"
                if (first := ids.setdefault(document.id, place)) != place:
                    raise ValueError(f'id "{document.id}" was already used in {first}')
                yield document.raw
            except ValueError as error:
                reason = f"{readable(path)}, {position}: {error}"
                if not skip_bad:
                    remedy = "Mend the row, or pass --skip-bad to leave such rows out."
                    raise CorpusError(f"{reason}.", remedy=remedy) from error
                written.skipped.add(reason)


def _record(row: Row, columns: Columns, written: Written) -> dict[str, Any]:
    """The document that a row becomes. Raises ValueError for a bad row."""
    title, texts = columns.title or "title", columns.text or ("text",)
    record = {
        "_id": str(written.rows) if written.id_column is None else _id(row, written.id_column),
        "title": _text(row, title),
        "text": "\n\n".join(filter(None, (_text(row, name) for name in texts))),
    }
    if not record["title"].strip() and all(row.get(name) is None for name in texts):
        if texts[0] not in row:
            raise ValueError(_missing(texts[0], row))
        raise ValueError(f'column "{texts[0]}" is null, where a text is expected')
    used = {written.id_column, title, *texts, *columns.drop}
    for name, value in row.items():
        if name not in used and value is not None:
            if name in record:
                raise ValueError(f'column "{name}" has the name of what another column becomes; --drop it')
            record[name] = _number(name, value) if name in columns.number else value
    return record


def _check(columns: Columns, there: Collection[str], path: Path) -> None:
    """Raise CorpusError where a column that is named, or `text`, is not among those that are `there`."""
    for name in [*columns.named, *([] if columns.text else ["text"])]:
        if name not in there:
            raise CorpusError(f"{readable(path)}: {_missing(name, there)}.", remedy=_COLUMNS)


def _missing(name: str, there: Collection[str]) -> str:
    names = [f'"{column}"' for column in list(there)[:_MAX_NAMED]]
    more = f" and {len(there) - _MAX_NAMED} more" if len(there) > _MAX_NAMED else ""
    return f'there is no column "{name}"; there are {", ".join(names)}{more}'


def _id(row: Row, name: str) -> str:
    if name not in row:
        raise ValueError(_missing(name, row))
    if (value := row[name]) is None:
        raise ValueError(f'column "{name}" is null, where the id is expected')
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f'column "{name}": an id must be a text or a whole number, found {value!r:.80}')
    return str(value)


def _text(row: Row, name: str) -> str:
    """The text in a column; none where it is null, or an object of JSON leaves it out."""
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f'column "{name}" must hold texts, found {value!r:.80}')
    return value or ""


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    digits = value.strip()
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f'column "{name}": {value!r:.80} is no number')
    number = int(digits) if digits.lstrip("+-").isdecimal() else float(digits)
    if math.isinf(number):
        raise ValueError(f'column "{name}": {number!r} is beyond the numbers that JSON has')
    return number


def _rows_of(path: Path, columns: Columns, dialect: Dialect) -> Rows:
    """The rows of a file. Raise CorpusError for a file that can't be read, or lacks a column that is named, and
    MissingExtraError without DuckDB."""
    with importing("import"):
        import duckdb
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    settings: dict[str, Any] = {"threads": 1, "TimeZone": "UTC", "autoinstall_known_extensions": False}
    try:
        with open_regular(path) as file, duckdb.connect(config=settings) as database:
            yield from _opened(path, file, database, columns, dialect)
    except (OSError, EOFError, TypeError, ValueError, csv.Error, zlib.error, duckdb.Error) as error:
        what = str((isinstance(error, OSError) and error.strerror) or error).strip().split("\n")[0]
        message = (what.partition(" Error: ")[2] or what)[:300].rstrip(".")
        raise CorpusError(
            f"{readable(path)}: can't be read: {message}.", remedy="Mend it, or fetch it again."
        ) from error


def _opened(path: Path, file: io.BufferedReader, database: Any, columns: Columns, dialect: Dialect) -> Rows:
    """Open a file, which DuckDB knows by its descriptor: a path may have the signs of a pattern."""
    options: dict[str, Any] = {"file": f"/dev/fd/{file.fileno()}", "compression": "none"}
    head = file.read(HEAD)
    file.seek(0)
    unpacked: Any = file
    if head.startswith(GZIP):
        options["compression"] = "gzip"
        unpacked = gzip.GzipFile(fileobj=file)
        head = unpacked.read(HEAD)
        unpacked.seek(0)
    kind = kind_of(head)
    name = "" if kind is None else kind.name
    if name == "Parquet" and unpacked is file:
        return _parquet(path, database, options["file"], columns)
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if name in ("one JSON array", "JSON over several lines") or (kind is None and first == b"{"):
        layout = "array" if first == b"[" else "unstructured" if kind is not None else "newline_delimited"
        return _json(path, database, {**options, "format": layout, "ignore_errors": kind is None}, columns)
    if kind is not None:
        packed = "" if unpacked is file else " packed by gzip"
        remedy = "Unpack it by `gzip -d`." if packed else kind.remedy
        raise CorpusError(f"{readable(path)}: this is {name}{packed}, which is not read.", remedy=remedy)
    delimiter = dialect.delimiter or ("\t" if ".tsv" in map(str.lower, path.suffixes) else ",")
    quote = dialect.quote if dialect.quote is not None else "" if delimiter == "\t" else '"'
    names = _csv_names(unpacked, dialect, delimiter, quote)
    _check(columns, names, path)
    options |= {"delim": delimiter, "quote": quote, "escape": quote, "header": dialect.header}
    options |= {"columns": {f"c{number}": "VARCHAR" for number in range(len(names))}}
    return _csv(database, options, names)


def _function(database: Any, function: str, options: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The rows that a function of DuckDB reads."""
    named = ", ".join(f"{name} = ${name}" for name in options if name != "file")
    return _query(database, f"SELECT * FROM {function}($file, {named})", options)


def _query(database: Any, query: str, options: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    result = database.execute(query, options)
    while rows := result.fetchmany(_ROWS):
        yield from rows


def _json(path: Path, database: Any, options: dict[str, Any], columns: Columns) -> Rows:
    """The objects of a file, each read as a document is; DuckDB finds where they end."""
    options |= {"maximum_object_size": MAX_DOCUMENT_BYTES}
    names = dict.fromkeys(columns.drop)
    for number, (text,) in enumerate(_function(database, "read_json_objects", options), 1):
        try:
            if text is None:
                raise ValueError("not JSON")
            row = read_object(text.encode())
            names |= dict.fromkeys(row)
            yield f"row {number}", row
        except ValueError as error:
            yield f"row {number}", error
    if names:
        _check(columns, names, path)


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


def _csv(database: Any, options: dict[str, Any], names: list[str]) -> Rows:
    """The rows, and behind them the lines that are none."""
    options |= {"auto_detect": False, "comment": "", "max_line_size": MAX_DOCUMENT_BYTES, "store_rejects": True}
    number = 0
    for cells in _function(database, "read_csv", options):
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


def _parquet(path: Path, database: Any, file: str, columns: Columns) -> Rows:
    """The rows of a Parquet file. Raise ValueError for a type or a name that DuckDB would change."""
    schema = list(_query(database, "SELECT name, coalesce(precision, 0) FROM parquet_schema($file)", {"file": file}))
    for name, digits in schema:
        if digits > _MAX_DIGITS and name not in columns.drop:
            raise ValueError(f'column "{name}" has decimals of {digits} digits, of which {_MAX_DIGITS} are read')
    source = "read_parquet($file, hive_partitioning = false, union_by_name = false)"
    described = database.execute(f"SELECT * FROM {source} LIMIT 0", {"file": file}).description
    kinds = {name: kind.id for name, kind, *_ in described}
    if changed := kinds.keys() - {name for name, _ in schema}:  # DuckDB has given it this name
        name = min(changed).rpartition("_")[0]
        raise ValueError(f'two columns have the name "{name}", apart from capitals; rename one')
    _check(columns, kinds, path)
    names = [name for name in kinds if name not in columns.drop]
    selected = ", ".join(_selected(name, kinds[name]) for name in names) or "NULL"
    for number, values in enumerate(_query(database, f"SELECT {selected} FROM {source}", {"file": file}), 1):
        yield f"row {number}", _plain_row(names, values)


def _selected(name: str, kind: str) -> str:
    """A column in SQL, which fails for a time that JSON lacks."""
    quoted = '"' + name.replace('"', '""') + '"'
    if kind.startswith(("date", "timestamp")):
        return f"CASE WHEN isinf({quoted}) THEN error('infinite {kind}, which JSON lacks') ELSE {quoted} END"
    return quoted


def _plain_row(names: list[str], values: tuple[Any, ...]) -> Row | ValueError:
    row = Row()
    for name, value in zip(names, values, strict=False):
        try:
            row[name] = _plain(value)
        except ValueError as error:
            return ValueError(f'column "{name}": {error}; mend it, or leave the column out by --drop')
    return row


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
