"""BEIR files: corpus and queries as JSON lines, and qrels as columns; gzipped or not."""

import gzip
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from lightretriever.artifacts.corpus.lines import read_lines
from lightretriever.artifacts.documents.bounds import check_id
from lightretriever.artifacts.documents.document import Document, read_document, read_query, read_text
from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.files.atomic import new_file
from lightretriever.artifacts.reports import Summary, megabytes

_FORMS: Final = "query-id, corpus-id and score (BEIR), or query-id, iteration, corpus-id and grade (TREC)"
_TABLE: Final = "; if this is CSV or another table, make a corpus of it by `lightretriever corpus`"
_MAX_REASONS: Final = 20


@dataclass
class Skipped:
    """Lines left out under `skip_bad`: how many, and the first few reasons."""

    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, reason: str) -> None:
        """Count one bad line, and keep its reason if it is one of the first 20."""
        self.count += 1
        if len(self.reasons) < _MAX_REASONS:
            self.reasons.append(reason)


class Corpus:
    """A corpus file in BEIR layout, read line by line.

    `path` is a `.jsonl` or `.jsonl.gz` file, or a folder with `corpus.jsonl[.gz]`. A line is bad, too, that has a value
    of another kind in one of the declared `fields` (see `artifacts.documents.fields`), or whose document `check` raises
    ValueError for. With `skip_bad`, bad lines are counted in `skipped` (of the last complete pass) instead of raising
    CorpusError.
    """

    def __init__(
        self,
        path: Path,
        *,
        skip_bad: bool = False,
        limit: int | None = None,
        fields: Mapping[str, FieldKind] | None = None,
        check: Callable[[Document], object] = bool,
    ) -> None:
        self.path = find_file(path, "corpus")
        self.skip_bad = skip_bad
        self.limit = limit
        self.fields = dict(fields or {})
        self._check = check
        self.skipped = Skipped()

    def __iter__(self) -> Iterator[Document]:
        """Documents in file order. Raises CorpusError with file and line for a bad line."""
        self.skipped = Skipped()
        seen: dict[str, int] = {}
        names: set[str] = set()
        for number, line in read_lines(self.path):
            try:
                document = read_document(line, self.fields, names)
                self._check(document)
                first = seen.get(document.id)
                if first is not None:
                    raise ValueError(f'id "{document.id}" was already used in line {first}')
            except ValueError as error:
                table = "" if number > 1 or line.lstrip().startswith(b"{") else _TABLE
                reason = f"{self.path}, line {number}: {error}{table}."
                if not self.skip_bad:
                    remedy = "Mend the line, or pass --skip-bad to leave such lines out."
                    raise CorpusError(reason, remedy=remedy) from error
                self.skipped.add(reason)
                continue
            seen[document.id] = number
            yield document
            if self.limit is not None and len(seen) >= self.limit:
                return


def has_file(path: Path, stem: str) -> bool:
    """True if the folder `path` has `STEM.jsonl` or `STEM.jsonl.gz`; `path` itself may be that file."""
    return any(file.is_file() for file in _files(Path(path), stem))


def _files(path: Path, stem: str) -> list[Path]:
    names = (f"{stem}.jsonl", f"{stem}.jsonl.gz")
    return [path] if path.name in names else [path / name for name in names]


def find_file(path: Path, stem: str) -> Path:
    """`path` itself when it is a file, else `STEM.jsonl` or `STEM.jsonl.gz` in the folder `path`."""
    path = Path(path)
    for candidate in (path, *_files(path, stem)):
        if candidate.is_file():
            return candidate
    raise CorpusError(
        f"{path}: no {stem}.jsonl or {stem}.jsonl.gz there.", remedy="Give the file itself, or a folder in BEIR layout."
    )


@contextmanager
def _line(path: Path, number: int) -> Iterator[None]:
    """Raise CorpusError, which names file and line, for a ValueError of the block."""
    try:
        yield
    except ValueError as error:
        raise CorpusError(f"{path}, line {number}: {error}.", remedy="Mend the line.") from error


def read_queries(path: Path, judged: Container[str] | None = None) -> dict[str, str]:
    """Query texts by id, in file order, from `queries.jsonl[.gz]` or the folder that holds it.

    Raises CorpusError for a bad line. An empty text is one, unless its id is not among those that are `judged`.
    """
    path = find_file(path, "queries")
    queries: dict[str, str] = {}
    for number, line in read_lines(path):
        with _line(path, number):
            query_id, text = read_query(line)
            if query_id in queries:
                raise ValueError(f'id "{query_id}" is used twice')
            if not text.strip() and (judged is None or query_id in judged):
                raise ValueError(f'query "{query_id}" has an empty text')
            queries[query_id] = text
    return queries


def read_ids(path: Path) -> list[str]:
    """The ids of documents in a file that has one on each line. Raises CorpusError for what can't be one, and for a
    file without any."""
    ids = []
    for number, line in read_lines(path):
        with _line(path, number):
            ids.append(check_id(read_text(line)))
    if not ids:
        raise CorpusError(f"{path}: there is no id in it.", remedy="Give a file with an id on each line.")
    return ids


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Judgments: query id → document id → relevance grade, a whole number.

    The lines have BEIR's columns (query-id, corpus-id, score, below a header or not) or TREC's four (query-id,
    iteration, corpus-id, grade), separated by tabs or by blanks, all of them alike. A pair may stand there again with
    the same grade. Raises CorpusError with file and line for a bad line.
    """
    qrels: dict[str, dict[str, int]] = {}
    form: tuple[bool, int] | None = None
    for number, line in read_lines(path):
        with _line(path, number):
            text = read_text(line)
            tabs = "\t" in text
            columns = [column for column in text.split("\t" if tabs else " ") if tabs or column]
            first, form = form is None, form or (tabs, len(columns))
            if form[1] not in (3, 4) or form != (tabs, len(columns)):
                raise ValueError(f"expected {_FORMS}, all lines alike, found {text[:200]!r}")
            if first and columns[0].lower() == "query-id":
                continue
            query_id, document_id, grade = check_id(columns[0]), check_id(columns[-2]), columns[-1].strip(" ")
            if not re.fullmatch(r"[+-]?[0-9]{1,9}(\.0*)?", grade):
                raise ValueError(f"the grade must be a whole number, which may end with .0, found {grade[:80]!r}")
            before = qrels.setdefault(query_id, {}).setdefault(document_id, int(float(grade)))
            if before != int(float(grade)):
                raise ValueError(
                    f'"{document_id}" has the grade {before} for query "{query_id}" before, and {grade} here'
                )
    return qrels


@dataclass
class Written:
    """The corpus that the command `corpus` wrote: `documents` of so many `texts`, files; `skipped` were bad;
    `passed_over` are of another kind, or hidden. Of tables, `rows` were read, and the column `id_column` has the ids;
    without it these are the rows' numbers."""

    documents: int = 0
    texts: int = 0
    rows: int | None = None
    skipped: Skipped = field(default_factory=Skipped)
    passed_over: int = 0
    id_column: str | None = None

    def summary(self, path: Path) -> Summary:
        """The summary of the corpus at `path`."""
        size, bad = path.stat().st_size, self.skipped.count
        rows = "" if self.rows is None else f"{self.rows:,} rows in "
        files = f"{self.texts:,} file{'' if self.texts == 1 else 's'}"
        lines = [f"{path}: {self.documents:,} documents of {rows}{files}, {megabytes(size)}"]
        if self.rows is not None:
            numbers = "the numbers of the rows, from 1; --id names a column in their place"
            lines += [f"ids: {numbers if self.id_column is None else self.id_column}"]
        if bad:
            lines += [f"skipped: {bad:,} bad {'files' if self.rows is None else 'rows'}"]
        if self.passed_over:
            lines += [f"passed over: {self.passed_over:,} hidden files and folders, and files of other kinds"]
        facts = vars(self) | {"skipped": bad, "skipped_files": self.skipped.reasons, "bytes": size}
        return Summary(str(path), lines, facts)


@contextmanager
def new_corpus(path: Path, *, overwrite: bool) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """The new corpus, which is all that its command makes: whole or not at all, gzipped where its name says so.

    Raises CorpusError for another ending and for a corpus that is there already, and DiskError when it can't be
    written.
    """
    if not path.name.endswith((".jsonl", ".jsonl.gz")):
        raise CorpusError(f"{path}: a corpus is called *.jsonl.gz or *.jsonl.", remedy="Choose such a name.")
    if os.path.lexists(path) and not overwrite:  # what may not be looked at is told of when it is written
        raise CorpusError(f"{path}: exists already.", remedy="Choose another name, or pass --overwrite.")
    with new_file(path, last=True) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield packed
        else:
            yield file
