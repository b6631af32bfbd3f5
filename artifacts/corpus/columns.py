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

__all__ = ["Columns", "write_row_corpus"]

_REMEDY: Final = "Mend the row, or pass --skip-bad to leave such rows out."
_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_NAMED: Final = 30


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
    seen: dict[str, None] = field(default_factory=dict)
    id_column: str | None = None

    def check(self, names: list[str] | None) -> None:
        """Raise ValueError for a table of these columns without a named one, or with two of a name."""
        if names is None:
            return
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f'two columns have the name "{twice[0]}"; rename one')
        for name in [*self.columns.named, *([] if self.columns.text else ["text"])]:
            if name not in names:
                raise ValueError(_missing(name, names))

    def document(self, row: Row, place: str) -> bytes:
        """The line of the corpus that a row at `place` becomes. Raises ValueError for a bad row."""
        columns = self.columns
        self.seen.update(dict.fromkeys(row))
        if self.written.numbered is None:  # the first row decides for all
            self.id_column = columns.id or ("_id" if "_id" in row else None)
            self.written.numbered = self.id_column is None
            self.written.id_column = self.id_column
        title = columns.title or ("title" if "title" in row else None)
        texts = columns.text or ("text",)
        document = {
            "_id": str(self.written.rows) if self.id_column is None else _id(row, self.id_column),
            "title": "" if title is None or row.get(title) is None else _text(row, title),
            "text": "",
        }
        document["text"] = _joined(row, texts, titled=bool(document["title"].strip()))
        used = {self.id_column, title, *texts, *columns.drop}
        for name, value in row.items():
            if name not in used and value is not None:
                if name in document:
                    raise ValueError(f'column "{name}" has the name of what another column becomes; --drop it')
                document[name] = _number(name, value) if name in columns.number else value
        found = read_document(serialised(document), {}, self.names)
        if (first := self.ids.setdefault(found.id, place)) != place:
            raise ValueError(f'id "{found.id}" was already used in {first}')
        return found.raw

    def finish(self, source: Path) -> None:
        """Raise CorpusError where no row had a named column, or there is no document."""
        needed = [*self.columns.named, *([] if self.columns.text else ["text"])]
        for name in needed if self.seen else ():
            if name not in self.seen and name not in self.columns.drop:
                raise CorpusError(f"{readable(source)}: {_missing(name, self.seen)}.", remedy="Name another column.")
        if not self.written.documents:
            reasons = [f" {reason}." for reason in self.written.skipped.reasons[:1]]
            raise CorpusError(
                f"{readable(source)}: no row became a document.{''.join(reasons)}", remedy="Give another table."
            )


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
    reader = _Reader(columns, written)
    with new_corpus(output) as file:
        for line in tracked(_lines(files, reader, dialect, skip_bad=skip_bad), "corpus", total=None, unit="rows"):
            file.write(line + b"\n")
        reader.finish(source)
    return written


def _lines(files: list[Path], reader: _Reader, dialect: Dialect, *, skip_bad: bool) -> Iterator[bytes]:
    written = reader.written
    for path in files:
        with open_table(path, dialect, reader.columns.drop) as (names, rows):
            try:
                reader.check(names)
            except ValueError as error:
                raise CorpusError(
                    f"{readable(path)}: {error}.", remedy="See --id, --title and --text, and --columns."
                ) from error
            for place, row in rows:
                written.rows = (written.rows or 0) + 1
                try:
                    if isinstance(row, ValueError):
                        raise row
                    line = reader.document(row, f"{path.name}, {place}")
                except ValueError as error:
                    if not skip_bad:
                        raise CorpusError(f"{readable(path)}, {place}: {error}.", remedy=_REMEDY) from error
                    written.skipped.add(f"{readable(path)}, {place}: {error}")
                    continue
                written.documents += 1
                yield line


def _missing(name: str, there: Collection[str]) -> str:
    names = [f'"{one}"' for one in list(there)[:_MAX_NAMED]]
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
    value = row[name]
    if not isinstance(value, str):
        raise ValueError(f'column "{name}" must hold texts, found {value!r:.80}')
    return value


def _joined(row: Row, names: tuple[str, ...], *, titled: bool) -> str:
    texts = [_text(row, name) for name in names if row.get(name) is not None]  # an object of JSON may leave one out
    if not texts and not titled:
        if names[0] not in row:
            raise ValueError(_missing(names[0], row))
        raise ValueError(f'column "{names[0]}" is null, where a text is expected')
    return "\n\n".join(filter(None, texts))


def _number(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    digits = value.strip()
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f'column "{name}": {value!r:.80} is no number')
    found = int(digits) if digits.lstrip("+-").isdecimal() else float(digits)
    if found in (math.inf, -math.inf):
        raise ValueError(f'column "{name}": {found!r} is beyond the numbers that JSON has')
    return found
