"""The encoded corpus: every line read once and checked once, in columns that all later stages map into memory.

FOLDER/KEY/           KEY is a digest of the format, the corpus file's SHA-256, and how it is read
    corpus.json       what KEY is of; the number of documents, the bad lines, the different sets of fields
    ids, raw          the documents' ids and JSON, one after the other; ids.at, raw.at (N + 1,) int64: where each begins
    lines, texts      (N, 16) uint8, digests of the lines, and of title and text
    fields            (N,) int32, each document's set of fields
    tokens-TOKENIZER/ token ids: at (N + 1,) int64, values (nnz,) int32, in the order of the text
    terms-VOCABULARY/ terms and how often a document has them: at, values, counts (nnz,) int32, names.json
    NAME.old, origin  columns of the corpus before, and the place there of each document (N,) int64, -1 for a new line

Numbers are little-endian. A changed corpus is another KEY: only lines whose digest is new are parsed and checked, and
its columns are made of the former ones and of new lines. The model's vectors and impacts of a text are in shards named
by content (`files.shards`), by which several machines share the work: each of them has the same columns.
"""

import json
import os
import shutil
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import orjson
from lightretriever.artifacts.corpus.beir import Corpus, Document, Known, Skipped
from lightretriever.artifacts.errors import CorpusError, ResumeError
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.files.shards import text_digest
from lightretriever.artifacts.files.workdir import read_json
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.progress import tracked
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["FORMAT", "EncodedCorpus", "Rows", "TermCounts", "encoded_corpus"]

FORMAT: Final = 2
_FACTS: Final = "corpus.json"
_DIGEST_BYTES: Final = 16
_BATCH: Final = 1024
_OLD: Final = ".old"


@dataclass(frozen=True)
class Rows:
    """Whole numbers of n texts: those of text i are `values[at[i]:at[i + 1]]`. `at` (n + 1,) int64, `values` int32."""

    at: npt.NDArray[np.int64]
    values: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.at) - 1

    def __getitem__(self, row: int) -> npt.NDArray[np.int32]:
        return self.values[self.at[row] : self.at[row + 1]]

    def __iter__(self) -> Iterator[npt.NDArray[np.int32]]:
        return (self[row] for row in range(len(self)))


@dataclass(frozen=True)
class TermCounts:
    """The different terms of n texts as numbers, in the order in which a text has them, with `counts` beside them.
    `names` are the terms by number, in the order in which the texts have them first."""

    terms: Rows
    counts: npt.NDArray[np.int32]
    names: list[str]

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]]) -> Self:
        """Count the terms of texts."""
        numbers, at = dict[str, int](), array("q", [0])
        terms, counts = array("i"), array("i")
        for text in texts:
            _count(text, numbers, terms, counts)
            at.append(len(terms))
        rows = Rows(np.array(at, np.int64), np.array(terms, np.int32))
        return cls(rows, np.array(counts, np.int32), list(numbers))

    def __len__(self) -> int:
        return len(self.terms)

    def sorted(
        self, start: int, stop: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The texts from `start` on up to `stop` in CSR form: `indptr` (n + 1,), terms (nnz,), ascending in each text,
        and counts (nnz,)."""
        at = self.terms.at[start : stop + 1]
        part = slice(int(at[0]), int(at[-1]))
        terms, counts, indptr = self.terms.values[part], self.counts[part], at - at[0]
        order = np.lexsort((terms, np.repeat(np.arange(stop - start), np.diff(indptr))))
        return indptr, terms[order], counts[order]

    def parts(self, size: int = 65_536) -> Iterator[tuple[int, int]]:
        """The texts in parts: first, and one after the last."""
        for start in range(0, len(self), size):
            yield start, min(start + size, len(self))


@dataclass(frozen=True)
class _Texts:
    """Texts one after the other: text i is `content[at[i]:at[i + 1]]`."""

    content: npt.NDArray[np.uint8]
    at: npt.NDArray[np.int64]

    def part(self, start: int, stop: int) -> list[bytes]:
        ends = (self.at[start : stop + 1] - self.at[start]).tolist()
        whole = self.content[self.at[start] : self.at[stop]].tobytes()
        return [whole[begin:end] for begin, end in pairwise(ends)]


@dataclass(frozen=True)
class EncodedCorpus:
    """A corpus that was read. `skipped` are its bad lines; `digests` (N, 16) uint8 are those of title and text."""

    folder: Path
    facts: dict[str, Any]
    skipped: Skipped
    digests: npt.NDArray[np.uint8]
    _ids: _Texts
    _raw: _Texts

    @classmethod
    def of(cls, corpus: Corpus, folder: Path, *, shared: bool = False) -> Self:
        """The encoded corpus below `folder`, which is written unless it is there. Others are removed, unless the folder
        is `shared` with processes that may use them. Raises CorpusError for a bad line or no document."""
        facts = {"format": FORMAT, "corpus_sha256": corpus.sha256(), "limit": corpus.limit}
        facts |= {"skip_bad": corpus.skip_bad, "kinds": corpus.fields}
        key = blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=_DIGEST_BYTES).hexdigest()
        if not (folder / key / _FACTS).is_file():
            with _new_folder(folder / key) as new:
                _write(corpus, facts, new, _former(folder, facts))
        for other in () if shared else [*folder.iterdir(), *(folder / key).glob("*.partial")]:
            if other.name != key:  # another corpus, or what a killed process left
                shutil.rmtree(other)
        return cls.open(folder / key)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map what `of` wrote. Raises ResumeError where it is damaged."""
        facts = read_json(folder / _FACTS)
        skipped = Skipped(facts["skipped"], facts["reasons"])
        ids, raw = (_Texts(_mapped(folder / name, "u1"), _mapped(folder / f"{name}.at", "<i8")) for name in _TEXTS)
        return cls(folder, facts, skipped, _mapped(folder / "texts", "u1", _DIGEST_BYTES), ids, raw)

    @property
    def corpus_sha256(self) -> str:
        """SHA-256 of the corpus' file."""
        return str(self.facts["corpus_sha256"])

    def __len__(self) -> int:
        return int(self.facts["documents"])

    def ids(self, start: int, stop: int) -> list[str]:
        """The ids of the documents from `start` on up to `stop`."""
        return [document_id.decode() for document_id in self._ids.part(start, stop)]

    def raws(self, start: int, stop: int) -> list[bytes]:
        """The JSON of documents."""
        return self._raw.part(start, stop)

    def document(self, row: int) -> Document:
        """A document."""
        return _document(self._raw.part(row, row + 1)[0])

    def __iter__(self) -> Iterator[Document]:
        for start in range(0, len(self), _BATCH):
            yield from map(_document, self.raws(start, min(start + _BATCH, len(self))))

    def texts(self) -> Iterator[str]:
        """Title and text of every document."""
        return (document.full_text for document in self)

    def tokens(self, tokenizer: TextTokenizer, *, queries: bool = False) -> Rows:
        """The token ids of every text, as `encode_batch` makes them, or as those of a query, unknown ones included."""
        apart = queries and tokenizer.space is not None
        name = f"tokens-{tokenizer.sha256[:16]}{'-lower' * tokenizer.lowercase}{'-queries' * apart}"
        made = self._column(name, lambda: _Tokens(tokenizer, apart))
        return Rows(_mapped(made / "at", "<i8"), _mapped(made / "values", "<i4"))

    def terms(self, vocabulary: Vocabulary) -> TermCounts:
        """The terms of a vocabulary of words, or one of tokens, counted in every document."""
        tokenizer = vocabulary.tokenizer
        if tokenizer is not None:
            known = (tokenizer.known(ids) for ids in self.tokens(tokenizer, queries=True))
            return TermCounts.of([f"{token}" for token in ids.tolist()] for ids in known)
        made = self._column(f"terms-{vocabulary.language}", lambda: _Words(vocabulary))
        rows = Rows(_mapped(made / "at", "<i8"), _mapped(made / "values", "<i4"))
        return TermCounts(rows, _mapped(made / "counts", "<i4"), orjson.loads((made / "names.json").read_bytes()))

    def _column(self, name: str, make: "Callable[[], _Column]") -> Path:
        """The folder of a column, which is made of the former corpus' column and of the new texts."""
        folder = self.folder / name
        if folder.is_dir():
            return folder
        column, old = make(), self.folder / f"{name}{_OLD}"
        origin = np.full(len(self), -1, np.int64)
        if old.is_dir():
            origin = _mapped(self.folder / "origin", "<i8")
            column.begin(old)
        with _new_folder(folder) as new:
            for start in tracked(range(0, len(self), _BATCH), name.partition("-")[0], total=None, unit="batches"):
                places = origin[start : start + _BATCH]
                raws = self.raws(start, start + len(places))
                fresh = iter(column.read([_document(raws[row]).full_text for row in np.flatnonzero(places < 0)]))
                for is_old, run in groupby(places.tolist(), lambda place: place >= 0):
                    if is_old:
                        column.take(list(run))
                    else:
                        for _ in run:
                            column.add(next(fresh))
            column.write(new)
        shutil.rmtree(old, ignore_errors=True)
        if not any(self.folder.glob(f"*{_OLD}")):
            (self.folder / "origin").unlink(missing_ok=True)
        return folder


def encoded_corpus(recipe: Recipe, *, shared: bool = False) -> EncodedCorpus:
    """The corpus of a recipe, below its work directory; see `EncodedCorpus.of`."""
    return EncodedCorpus.of(recipe.corpus.open(), recipe.work / "encoded", shared=shared)


class _Column:
    """A column on its way: rows of whole numbers, each made of a text or taken from the column before."""

    def __init__(self) -> None:
        self.at, self.values, self.old = array("q", [0]), array("i"), Rows(np.zeros(1, np.int64), np.zeros(0, np.int32))

    def begin(self, old: Path) -> None:
        """Take rows from a folder."""
        self.old = Rows(_mapped(old / "at", "<i8"), _mapped(old / "values", "<i4"))

    def read(self, texts: list[str]) -> Iterable[Any]:
        """What `add` takes of each text."""
        raise NotImplementedError

    def add(self, row: Any) -> None:
        """Add a row of a text."""
        raise NotImplementedError

    def take(self, places: list[int]) -> None:
        """Add rows of the column before."""
        raise NotImplementedError

    def write(self, folder: Path) -> None:
        """Write the column."""
        (folder / "at").write_bytes(self.at.tobytes())
        (folder / "values").write_bytes(self.values.tobytes())


class _Tokens(_Column):
    def __init__(self, tokenizer: TextTokenizer, queries: bool) -> None:
        super().__init__()
        self._tokenizer, self._queries = tokenizer, queries

    def read(self, texts: list[str]) -> Iterable[npt.NDArray[np.int32]]:
        return self._tokenizer.as_queries(texts) if self._queries else self._tokenizer.encode_batch(texts)

    def add(self, row: npt.NDArray[np.int32]) -> None:
        self.values.frombytes(row.tobytes())
        self.at.append(len(self.values))

    def take(self, places: list[int]) -> None:
        for place in places:
            self.add(self.old[place])


class _Words(_Column):
    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._vocabulary, self._numbers, self._counts = vocabulary, dict[str, int](), array("i")

    def begin(self, old: Path) -> None:
        super().begin(old)
        self._old_counts = _mapped(old / "counts", "<i4")
        self._old_names: list[str] = orjson.loads((old / "names.json").read_bytes())
        self._renumbered = np.full(len(self._old_names), -1, np.int32)

    def read(self, texts: list[str]) -> Iterable[list[str]]:
        return self._vocabulary.terms_of(texts) if texts else []

    def add(self, row: list[str]) -> None:
        _count(row, self._numbers, self.values, self._counts)
        self.at.append(len(self.values))

    def take(self, places: list[int]) -> None:
        for place in places:
            terms = self.old[place]
            for term in terms[self._renumbered[terms] < 0].tolist():
                self._renumbered[term] = self._numbers.setdefault(self._old_names[term], len(self._numbers))
            self.values.frombytes(self._renumbered[terms].tobytes())
            self._counts.frombytes(self._old_counts[self.old.at[place] : self.old.at[place + 1]].tobytes())
            self.at.append(len(self.values))

    def write(self, folder: Path) -> None:
        super().write(folder)
        (folder / "counts").write_bytes(self._counts.tobytes())
        (folder / "names.json").write_bytes(orjson.dumps(list(self._numbers)))


def _count(text: Sequence[str], numbers: dict[str, int], terms: "array[int]", counts: "array[int]") -> None:
    found = Counter(text)
    terms.extend([numbers.setdefault(term, len(numbers)) for term in found])
    counts.extend(found.values())


_TEXTS: Final = ("ids", "raw")


class _Former:
    """The corpus before, by its lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpus = EncodedCorpus.open(folder)
        self._fields = _mapped(folder / "fields", "<i4")
        self._lines = _mapped(folder / "lines", "u1", _DIGEST_BYTES)
        begins = np.ascontiguousarray(self._lines[:, :8]).view("<u8")[:, 0]
        self._order = np.argsort(begins, kind="stable")
        self._begins = begins[self._order]

    def columns(self) -> list[Path]:
        """The folders of its columns."""
        return [folder for folder in self.folder.iterdir() if folder.is_dir() and not folder.suffix]

    def known(self, line: bytes) -> Known | None:
        """The document of a line; None for a line that the corpus before lacked."""
        digest = _line_digest(line)
        begin = np.uint64(int.from_bytes(digest[:8], "little"))
        place = int(np.searchsorted(self._begins, begin))
        while place < len(self._begins) and self._begins[place] == begin:
            row = int(self._order[place])
            if self._lines[row].tobytes() == digest:
                names = tuple(self.corpus.facts["fields"][self._fields[row]])
                return Known(self.corpus.ids(row, row + 1)[0], names, row)
            place += 1
        return None


def _former(folder: Path, facts: dict[str, Any]) -> _Former | None:
    """The corpus that was encoded before, if it was read in the same way."""
    whole = [file for file in folder.glob(f"*/{_FACTS}") if not file.parent.suffix]  # the others are being written
    for other in sorted(whole, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        found = read_json(other)
        if all(found.get(name) == facts[name] for name in ("format", "kinds")):
            return _Former(other.parent)
    return None


class _TextWriter:
    def __init__(self, folder: Path, name: str) -> None:
        self._at, self._file = array("q", [0]), (folder / name).open("wb")
        self._end = folder / f"{name}.at"

    def add(self, content: bytes) -> None:
        self._file.write(content)
        self._at.append(self._at[-1] + len(content))

    def close(self) -> None:
        self._file.close()
        self._end.write_bytes(self._at.tobytes())


def _write(corpus: Corpus, facts: dict[str, Any], new: Path, former: _Former | None) -> None:
    """Read a corpus into the folder `new`, and lines that were read before from the `former` one."""
    sets, fields, origin = dict[tuple[str, ...], int](), array("i"), array("q")
    with ExitStack() as stack:
        ids, raw = (stack.enter_context(closing(_TextWriter(new, name))) for name in _TEXTS)
        lines, texts = (stack.enter_context((new / name).open("wb")) for name in ("lines", "texts"))
        known = None if former is None else former.known
        for line, found in tracked(corpus.read(known), "corpus", total=None, unit="documents"):
            if former is not None and isinstance(found, Known):
                row, names = found.row, found.names
                content, digest = former.corpus.raws(row, row + 1)[0], former.corpus.digests[row].tobytes()
            elif isinstance(found, Document):
                row, names, content, digest = -1, found.names, found.raw, text_digest(found.full_text)
            ids.add(found.id.encode())
            raw.add(content)
            lines.write(_line_digest(line))
            texts.write(digest)
            fields.append(sets.setdefault(names, len(sets)))
            origin.append(row)
    if not fields:
        raise CorpusError(f"{corpus.path}: there is no document in it.", remedy="Give a corpus with documents.")
    (new / "fields").write_bytes(fields.tobytes())
    for column in () if former is None else former.columns():
        shutil.copytree(column, new / f"{column.name}{_OLD}", copy_function=os.link)
        (new / "origin").write_bytes(origin.tobytes())
    facts = {**facts, "documents": len(fields), "skipped": corpus.skipped.count, "reasons": corpus.skipped.reasons}
    (new / _FACTS).write_bytes(orjson.dumps(facts | {"fields": [list(names) for names in sets]}))


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """A folder that takes the name `target` when the block ends well, unless another process was faster."""
    new = target.with_name(f"{target.name}.{uuid4().hex}.partial")
    with writing(target):
        new.mkdir(parents=True)
        try:
            yield new
            for file in new.rglob("*"):
                if file.is_file():
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
            try:
                new.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
        finally:
            shutil.rmtree(new, ignore_errors=True)


def _line_digest(line: bytes) -> bytes:
    return blake2b(line, digest_size=_DIGEST_BYTES).digest()


def _document(raw: bytes) -> Document:
    record = orjson.loads(raw)
    return Document(record["_id"], record.get("title") or "", record["text"], raw)


def _mapped(file: Path, dtype: str, width: int | None = None) -> npt.NDArray[Any]:
    """The numbers of a file, (n,) or (n, width), mapped. Raises ResumeError where it is missing or damaged."""
    try:
        if not file.stat().st_size:
            return np.zeros(0 if width is None else (0, width), dtype)
        numbers: npt.NDArray[Any] = np.memmap(file, dtype, "r")
        return numbers if width is None else numbers.reshape(-1, width)
    except (OSError, ValueError) as error:
        raise ResumeError(
            f"{file}: can't be read: {error}.", remedy=f"Delete {file.parent}, and run the same command again."
        ) from error
