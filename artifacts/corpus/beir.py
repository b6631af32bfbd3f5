"""BEIR files: corpus and queries as JSON lines, gzipped or not, and qrels as tab-separated values."""

import gzip
import hashlib
import io
import json
import math
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from lightretriever.artifacts.corpus.fields import FieldKind, indexed_values
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.progress import tracked
from lightretriever.artifacts.tokens.tokenizer import document_text

__all__ = ["Corpus", "Document", "Skipped", "file_sha256", "find_file", "read_qrels", "read_queries"]


@dataclass(frozen=True, slots=True)
class Document:
    """One corpus line: `raw` is the line's JSON re-serialised (UTF-8), with all its fields."""

    id: str
    title: str
    text: str
    raw: bytes

    @property
    def full_text(self) -> str:
        """What is encoded: title and text."""
        return document_text(self.title, self.text)


@dataclass
class Skipped:
    """Lines left out under `skip_bad`: how many, and the first few reasons."""

    count: int = 0
    reasons: list[str] = field(default_factory=list)

    def add(self, reason: str, *, keep: int = 20) -> None:
        """Count one bad line, and keep its reason while there are fewer than `keep`."""
        self.count += 1
        if len(self.reasons) < keep:
            self.reasons.append(reason)


class Corpus:
    """A corpus file in BEIR layout, read line by line.

    `path` is a `.jsonl` or `.jsonl.gz` file, or a folder with `corpus.jsonl[.gz]`. A line is bad, too, that has a value
    of another kind in one of the declared `fields` (see `artifacts.corpus.fields`). With `skip_bad`, bad lines are
    counted in `skipped` (of the last complete pass) instead of raising CorpusError.
    """

    def __init__(
        self,
        path: Path,
        *,
        skip_bad: bool = False,
        limit: int | None = None,
        fields: Mapping[str, FieldKind] | None = None,
    ) -> None:
        self.path = find_file(path, "corpus")
        self.skip_bad = skip_bad
        self.limit = limit
        self.fields = dict(fields or {})
        self.skipped = Skipped()

    def sha256(self) -> str:
        """SHA-256 of the file as it lies on disk."""
        return file_sha256(self.path)

    def count(self) -> int:
        """Read it once and count its documents. Raises CorpusError for a bad line, and when there is no document."""
        count = sum(1 for _ in tracked(self, "corpus", total=None, unit="documents"))
        if count == 0:
            raise CorpusError(f"{self.path}: there is no document in it.", remedy="Give a corpus with documents.")
        return count

    def __iter__(self) -> Iterator[Document]:
        """Documents in file order. Raises CorpusError with file and line for a bad line."""
        self.skipped = Skipped()
        seen: dict[str, int] = {}
        for number, line in _lines(self.path):
            try:
                document = _document(line, self.fields)
                first = seen.get(document.id)
                if first is not None:
                    raise ValueError(f'id "{document.id}" was already used in line {first}')
            except ValueError as error:
                self._bad(f"{self.path}, line {number}: {error}.")
                continue
            seen[document.id] = number
            yield document
            if self.limit is not None and len(seen) >= self.limit:
                return

    def _bad(self, reason: str) -> None:
        if not self.skip_bad:
            raise CorpusError(reason, remedy="Mend the line, or pass --skip-bad to leave such lines out.")
        self.skipped.add(reason)


def find_file(path: Path, stem: str) -> Path:
    """`path` itself when it is a file, else `STEM.jsonl` or `STEM.jsonl.gz` in the folder `path`."""
    path = Path(path)
    if path.is_file():
        return path
    for candidate in (path / f"{stem}.jsonl", path / f"{stem}.jsonl.gz"):
        if candidate.is_file():
            return candidate
    raise CorpusError(
        f"{path}: no {stem}.jsonl or {stem}.jsonl.gz there.",
        remedy="Give the file itself, or a folder in BEIR layout.",
    )


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_queries(path: Path) -> dict[str, str]:
    """Query texts by id, in file order, from `queries.jsonl[.gz]` or the folder that holds it."""
    path = find_file(path, "queries")
    queries: dict[str, str] = {}
    for number, line in _lines(path):
        try:
            record = _object(line)
            query_id, text = _required_id(record), _string(record, "text")
            if query_id in queries:
                raise ValueError(f'id "{query_id}" is used twice')
            if not text.strip():
                raise ValueError(f'query "{query_id}" has an empty text')
        except ValueError as error:
            raise CorpusError(f"{path}, line {number}: {error}.", remedy="Mend the line.") from error
        queries[query_id] = text
    return queries


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Judgments of a BEIR qrels file: query id → document id → relevance grade. A header line is expected."""
    qrels: dict[str, dict[str, int]] = {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: the qrels can't be read: {error}.") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip() or (number == 1 and line.lower().startswith("query-id")):
            continue
        parts = line.split("\t")
        try:
            query_id, document_id, grade = parts
            qrels.setdefault(query_id, {})[document_id] = int(grade)
        except ValueError as error:
            raise CorpusError(
                f"{path}, line {number}: expected query-id, corpus-id and an integer score, separated by tabs, "
                f"found {line!r}.",
                remedy="Mend the line.",
            ) from error
    return qrels


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Numbered non-blank lines. A truncated gzip file raises CorpusError."""
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (EOFError, OSError, zlib.error) as error:
        raise CorpusError(f"{path}: the file can't be read to its end: {error}.", remedy="Fetch it again.") from error


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as probe:
        gzipped = probe.read(2) == b"\x1f\x8b"
    return io.BufferedReader(gzip.GzipFile(path, "rb")) if gzipped else path.open("rb")


def _document(line: bytes, fields: Mapping[str, FieldKind]) -> Document:
    record = _object(line)
    document_id = _required_id(record)
    title, text = _string(record, "title", default=""), _string(record, "text")
    if not document_text(title, text):
        raise ValueError(f'document "{document_id}" is empty: neither title nor text has a character')
    indexed_values(record, fields)
    return Document(document_id, title, text, json.dumps(record, ensure_ascii=False).encode())


def _object(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line, parse_constant=_refuse, parse_float=_finite, parse_int=_int64)
        json.dumps(record, ensure_ascii=False).encode()  # a lone surrogate escape can't be stored as UTF-8
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate ({error.object[error.start]!r}) is no valid text") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found {type(record).__name__}")
    return record


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)


def _int64(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**64:
        raise ValueError(f"{digits[:30]} doesn't fit into 64 bits; write it as a string")
    return number


def _required_id(record: dict[str, Any]) -> str:
    value = record.get("_id")
    if isinstance(value, int) and not isinstance(value, bool):
        value = record["_id"] = str(value)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'"_id" must be a non-empty string, found {value!r}')
    if "\n" in value or len(value.encode()) > 512:
        raise ValueError(f'"_id" must be at most 512 bytes without a line break, found {len(value)} characters')
    return sys.intern(value)


def _string(record: dict[str, Any], key: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise ValueError(f'"{key}" must be a string, found {value!r}')
    return value
