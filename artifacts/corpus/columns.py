"""A corpus of the rows of tables: which column is the id, the title and the text; all others become fields."""

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.corpus.output import Written, check_output, new_corpus
from lightretriever.artifacts.corpus.tables import DEFAULT_DIALECT, Dialect, Row, open_table
from lightretriever.artifacts.documents.document import read_document
from lightretriever.artifacts.documents.strict_json import serialised
from lightretriever.artifacts.errors import CorpusError, readable
from lightretriever.artifacts.progress import tracked

_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_NAMED: Final = 30
_COLUMNS: Final = "See --id, --title and --text, and --delimiter and --columns of CSV."


@dataclass(frozen=True, kw_only=True)
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


@dataclass
class _Reader:
    """Makes documents of rows, and remembers what it has seen."""

    columns: Columns
    written: Written
    ids: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def document(self, row: Row, position: str) -> bytes:
        """The line of the corpus that a row at `position` becomes. Raises ValueError for a bad row."""
        columns, written = self.columns, self.written
        if written.numbered is None:  # the first row decides for all
            written.id_column = columns.id or ("_id" if "_id" in row else None)
            written.numbered = written.id_column is None
        title, texts = columns.title or "title", columns.text or ("text",)
        document = {
            "_id": str(written.rows) if written.id_column is None else _id(row, written.id_column),
            "title": _text(row, title),
            "text": "\n\n".join(filter(None, (_text(row, name) for name in texts))),
        }
        if not document["title"].strip() and all(row.get(name) is None for name in texts):
            if texts[0] not in row:
                raise ValueError(_missing(texts[0], row))
            raise ValueError(f'column "{texts[0]}" is null, where a text is expected')
        used = {written.id_column, title, *texts, *columns.drop}
        for name, value in row.items():
            if name not in used and value is not None:
                if name in document:
                    raise ValueError(f'column "{name}" has the name of what another column becomes; --drop it')
                document[name] = _number(name, value) if name in columns.number else value
        parsed = read_document(serialised(document), {}, self.names)
        if (first := self.ids.setdefault(parsed.id, position)) != position:
            raise ValueError(f'id "{parsed.id}" was already used in {first}')
        return parsed.raw


def write_row_corpus(
    source: Path,
    files: list[Path],
    output: Path,
    columns: Columns,
    dialect: Dialect = DEFAULT_DIALECT,
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
    check_output(output, overwrite=overwrite)
    written = Written(texts=len(files), rows=0, dropped=list(columns.drop))
    with new_corpus(output) as file:
        lines = _lines(files, _Reader(columns, written), dialect, skip_bad=skip_bad)
        for line in tracked(lines, "corpus", total=None, unit="rows"):
            file.write(line + b"\n")
            written.documents += 1
        if not written.documents:
            reasons = [f" {reason}." for reason in written.skipped.reasons[:1]]
            what = f"{readable(source)}: no row became a document.{''.join(reasons)}"
            raise CorpusError(what, remedy="Give another table.")
    return written


def _lines(files: list[Path], reader: _Reader, dialect: Dialect, *, skip_bad: bool) -> Iterator[bytes]:
    columns, written, seen = reader.columns, reader.written, dict.fromkeys(reader.columns.drop)
    for path in files:
        with open_table(path, dialect, columns.drop) as (names, rows):
            if names is not None:
                _check(columns, names, path)
            for position, row in rows:
                written.rows = (written.rows or 0) + 1
                try:
                    if isinstance(row, ValueError):
                        raise row
                    seen.update(dict.fromkeys(row))
                    yield reader.document(row, f"{path.name}, {position}")
                except ValueError as error:
                    if not skip_bad:
                        remedy = "Mend the row, or pass --skip-bad to leave such rows out."
                        raise CorpusError(f"{readable(path)}, {position}: {error}.", remedy=remedy) from error
                    written.skipped.add(f"{readable(path)}, {position}: {error}")
            if names is None and written.documents:
                _check(columns, seen, path)


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
