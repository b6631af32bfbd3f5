"""Rows of tables: Parquet, Arrow, CSV and TSV, JSON arrays and JSON lines; texts also packed by gzip, zstd, xz or
bzip2. Files are known by their first bytes, and read row by row, so that a file may be larger than memory.

Parquet, Arrow and zstd need pyarrow (extra `import`), which is imported only for them.
"""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from lightretriever.artifacts.corpus.arrow import arrow_table, parquet_table, zstd_stream
from lightretriever.artifacts.corpus.lines import HEAD, kind_of, lines_of
from lightretriever.artifacts.documents.bounds import MAX_DOCUMENT_BYTES
from lightretriever.artifacts.documents.strict_json import read_object, read_text
from lightretriever.artifacts.errors import CorpusError, readable
from lightretriever.artifacts.files.reading import open_regular, read_bounded

__all__ = ["Placed", "Row", "Table", "open_table", "partition_of", "table_files"]

Row = dict[str, Any]
Placed = tuple[str, Row | ValueError]
"""Where a row stands, such as `line 3`, and the row, or what is wrong with it."""

_PACKED: Final[dict[str, Callable[[Any], Any]]] = {
    "zstd": zstd_stream,
    "xz": lzma.open,
    "bzip2": bz2.open,
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
}
_FAILURES: Final = (EOFError, NotImplementedError, OSError, ValueError, csv.Error, lzma.LZMAError, zlib.error)
"""Errors that the readers raise for a damaged file, pyarrow's among them."""
_COLUMNAR: Final = (".parquet", ".arrow", ".feather")
_DELIMITERS: Final = ",\t;|"
_NONE: Final = "\x1f"
"""A delimiter that no text has: what a table of one column is read with."""
_SEPARATOR_LINE: Final = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)
_SAMPLE_LINES: Final = 100
"""Lines by which the dialect of a CSV file is known."""
_DECODER: Final = json.JSONDecoder()
_PIECE: Final = 1 << 20
_PARTITION: Final = re.compile(r"[^.=][^=]*=.*")
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_MAX_STATE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Table:
    """An open file of rows. `columns` are None where each row names its own, as in JSON."""

    columns: list[str] | None
    rows: Iterator[Placed]


def table_files(source: Path) -> tuple[list[Path], int] | None:
    """The files that the rows of `source` lie in, in order, and the number of entries beside them.

    `source` is a file, a folder that `datasets` saved, or one with Parquet or Arrow files in it or in folders named
    `column=value`. None for any other folder. Raises CorpusError for a saved dataset of several splits.
    """
    if not source.is_dir():
        return [source], 0
    if splits := _json(source / "dataset_dict.json").get("splits"):
        folders = " or ".join(str(source / str(split)) for split in splits)
        raise CorpusError(f"{readable(source)}: a dataset of several splits.", remedy=f"Name one of them: {folders}.")
    try:
        entries = sorted(source.iterdir())
    except OSError:  # whoever reads its texts says why
        return None
    if isinstance(shards := _json(source / "state.json").get("_data_files"), list):
        if not all(isinstance(shard, dict) and "filename" in shard for shard in shards):
            raise CorpusError(
                f"{readable(source / 'state.json')}: an entry of _data_files has no filename.",
                remedy="Save the dataset again, or give its Arrow file itself.",
            )
        names = [Path(str(shard["filename"])).name for shard in shards]
        others = {entry.name for entry in entries} - {*names, "state.json", "dataset_info.json"}
        return [source / name for name in names], len(others)
    files = [entry for entry in entries if not entry.name.startswith(".") and _starts_as_columns(entry)]
    if not files:
        entries = sorted(_partitioned(entries))
        files = [entry for entry in entries if not entry.name.startswith((".", "_")) and _starts_as_columns(entry)]
    return (files, len(entries) - len(files)) if files else None


def partition_of(path: Path, source: Path) -> Row:
    """The fields that the folders between `source` and a file name, as `year=2024` does: texts, or None for the folder
    of rows without a value."""
    folders = path.relative_to(source).parts[:-1] if source != path else ()
    pairs = (folder.split("=", 1) for folder in folders)
    return {unquote(name): None if value == _NO_VALUE else unquote(value) for name, value in pairs}


def _partitioned(entries: list[Path]) -> Iterator[Path]:
    """Give the files in the folders of `entries` whose names are `column=value`, however deep: Hive's layout."""
    for entry in entries:
        if _PARTITION.fullmatch(entry.name) and entry.is_dir():
            yield from _partitioned(list(entry.iterdir()))
        else:
            yield entry


def open_table(path: Path, stack: ExitStack, drop: Collection[str] = (), *, delimiter: str | None = None) -> Table:
    """Open a file of rows, to be closed by `stack`; columns of `drop` are not read where that saves work. `delimiter`
    separates the cells of CSV; None finds it.

    Raises CorpusError for a file that can't be read, here or from its rows, and MissingExtraError without pyarrow.
    """
    try:
        file = stack.enter_context(open_regular(path))
        packing = _packing(file)
        if packing:
            file = stack.enter_context(io.BufferedReader(_PACKED[packing](file)))
        kind = kind_of(head := file.peek(HEAD)[:HEAD])
        name = kind.name if kind else ""
        if name in ("Parquet", "Arrow") and not packing:
            columns, rows = (parquet_table if name == "Parquet" else arrow_table)(file, drop)
        elif name in ("one JSON array", "JSON over several lines"):
            columns, rows = None, _json_objects(file)
        elif path.suffix.lower() in _COLUMNAR and not packing:
            raise ValueError(f"it is called {path.suffix}, but doesn't begin as such a file")
        elif kind:
            what = f"this is {kind.name}{f' packed by {packing}' if packing else ''}, which is not read"
            raise CorpusError(
                f"{readable(path)}: {what}.", remedy=f"Unpack it by `{packing} -d`." if packing else kind.remedy
            )
        elif head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
            columns, rows = None, _json_lines(file)
        else:
            columns, rows = _csv(file, delimiter)
    except _FAILURES as error:
        raise _unreadable(path, error) from error
    return Table(columns, _guarded(path, rows))


def _guarded(path: Path, rows: Iterator[Placed]) -> Iterator[Placed]:
    try:
        yield from rows
    except _FAILURES as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CorpusError:
    what = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    what = re.sub(r"([^?])$", r"\1.", what[:300].rstrip("."))
    return CorpusError(f"{readable(path)}: can't be read: {what}", remedy="Mend it, or fetch it again.")


def _packing(file: io.BufferedReader) -> str:
    head = file.peek(HEAD)[:HEAD]
    kind = kind_of(head)
    return "gzip" if head.startswith(b"\x1f\x8b") else kind.name if kind and kind.name in _PACKED else ""


def _starts_as_columns(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            kind = kind_of(file.read(HEAD))
    except OSError:  # a folder, a pipe, or what may not be read
        return False
    return kind is not None and kind.name in ("Parquet", "Arrow")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_bounded(path, _MAX_STATE_BYTES))
    except (OSError, ValueError, RecursionError):  # none that `datasets` wrote
        return {}
    return found if isinstance(found, dict) else {}


def _json_lines(file: io.BufferedReader) -> Iterator[Placed]:
    for number, line in lines_of(file):
        yield f"line {number}", _object(line)


def _json_objects(file: io.BufferedReader) -> Iterator[Placed]:
    """The objects of one array, or of a file with one object after another."""
    characters = codecs.getincrementaldecoder("utf-8-sig")()

    def read(size: int) -> str:
        piece = file.read(size)
        return characters.decode(piece, final=len(piece) < size)

    text, at, number = read(_PIECE).lstrip(), 0, 0
    array = text.startswith("[")
    between = re.compile(r"[\s,]*" if array else r"\s*")
    if array:
        at = 1
    while True:
        at = between.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        if array and text.startswith("]", at):
            break
        try:
            _, end = _DECODER.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            more = read(max(_PIECE, len(text) - at)) if len(text) - at <= MAX_DOCUMENT_BYTES else ""
            if not more and at == len(text) and not array:
                return
            if not more:
                raise ValueError(f"behind row {number}: not JSON: {error}") from error
            text, at = text[at:] + more, 0
            continue
        number += 1
        yield f"row {number}", _object(text[at:end].encode("utf-8", "surrogatepass"))
        at = end
    if text[at + 1 :].strip() or read(_PIECE).strip():
        raise ValueError("something stands behind the end of the array")


def _object(line: bytes) -> Row | ValueError:
    try:
        return read_object(line)
    except ValueError as error:
        return error


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How a CSV file separates its cells, and whether spaces before a quote are none of a cell's."""

    delimiter: str
    skip_spaces: bool = False

    def reader(self, lines: Iterable[str]) -> Any:
        return csv.reader(lines, delimiter=self.delimiter, skipinitialspace=self.skip_spaces, strict=True)

    def sample(self, lines: list[str]) -> list[list[str]]:
        """The rows that are read without an error."""
        rows: list[list[str]] = []
        with suppress(csv.Error):  # a wrong dialect, or a cell that the sample cuts
            for row in self.reader(lines):
                rows.extend([row] if row else [])
        return rows


def _csv(file: io.BufferedReader, delimiter: str | None) -> tuple[list[str], Iterator[Placed]]:
    csv.field_size_limit(MAX_DOCUMENT_BYTES)
    lines = _text_lines(file)
    sample = list(islice(lines, 1))
    if not sample or not sample[0].removeprefix("\ufeff").strip():
        raise ValueError("it is empty, or its first line is")
    sample[0] = sample[0].removeprefix("\ufeff")
    before = 0
    if said := _SEPARATOR_LINE.fullmatch(sample[0]):  # as Excel writes and reads it
        before, delimiter, sample = 1, delimiter or said[1], []
    size = sum(map(len, sample))
    for line in islice(lines, _SAMPLE_LINES):
        sample.append(line)
        size += len(line)
        if size > _PIECE:
            break
    if not sample:
        raise ValueError("it has no line but the one that names the delimiter")
    reader = _dialect(sample, delimiter).reader(chain(sample, lines))
    header = [name.strip() or f"column {position}" for position, name in enumerate(next(reader), 1)]
    return header, _csv_rows(reader, header, before)


def _dialect(sample: list[str], delimiter: str | None) -> _Dialect:
    """The dialect in which most rows have as many cells as the header, and of those the one with most cells. A header
    without any delimiter is that of one column."""

    def fit(rows: list[list[str]]) -> tuple[float, int]:
        if not rows or len(rows[0]) == 1:
            return -1.0, 1
        share = sum(len(row) == len(rows[0]) for row in rows) - 1
        return share / (len(rows) - 1) if len(rows) > 1 else 1.0, len(rows[0])

    best, best_fit = _Dialect(delimiter or _NONE), (-1.0, 1)
    for sign in delimiter or _DELIMITERS:
        plain, spaced = _Dialect(sign), _Dialect(sign, skip_spaces=True)
        rows, others = plain.sample(sample), spaced.sample(sample)
        for dialect, its_fit in ((plain, fit(rows)), (spaced, fit(others))):
            if its_fit > best_fit or (dialect is spaced and best is plain and _quoted_after_space(rows, others)):
                best, best_fit = dialect, its_fit
    return best


def _quoted_after_space(rows: list[list[str]], others: list[list[str]]) -> bool:
    """Whether a cell of `rows` keeps a quote that `others`, read without spaces before quotes, takes for one."""
    pairs = (
        (cell, other) for row, its in zip(rows, others, strict=False) for cell, other in zip(row, its, strict=False)
    )
    return any(cell != other and cell[:1] == " " and cell.lstrip(" ")[:1] == '"' for cell, other in pairs)


def _csv_rows(reader: Any, header: list[str], before: int) -> Iterator[Placed]:
    while True:
        place = f"line {before + reader.line_num + 1}"
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(f"{place}: {error}; are all quotes in pairs?") from error
        if cells is None:
            return
        if len(cells) == len(header):
            yield place, {name: cell or None for name, cell in zip(header, cells, strict=True)}
        elif cells:
            yield place, ValueError(f"{len(cells)} cells, where the header has {len(header)}")


def _text_lines(file: io.BufferedReader) -> Iterator[str]:
    head = file.peek(_PIECE)
    of_cr = b"\r" in head and b"\n" not in head
    lines = _lines_of_cr(file) if of_cr else iter(partial(file.readline, MAX_DOCUMENT_BYTES + 8), b"")
    for number, line in enumerate(lines, 1):
        try:
            yield read_text(line)
        except ValueError as error:
            if not isinstance(error, UnicodeDecodeError):
                raise ValueError(f"line {number}: {error}") from error
            byte = error.object[error.start]
            what = f"line {number}: not UTF-8 (byte 0x{byte:02x}); convert it, as by `iconv -f WINDOWS-1252 -t UTF-8`"
            raise ValueError(what) from error


def _lines_of_cr(file: io.BufferedReader) -> Iterator[bytes]:
    """Lines that end at "\\r" alone, as old spreadsheets wrote them; they come with "\\n"."""
    rest = b""
    while piece := file.read(_PIECE):
        *lines, rest = (rest + piece).split(b"\r")
        for line in lines:
            yield line + b"\n"
        if len(rest) > MAX_DOCUMENT_BYTES:
            break
    if rest:
        yield rest
