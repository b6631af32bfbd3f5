"""The encoded corpus: every line read and checked once, every text encoded once, in columns that later stages map.

WORK/encoded/KEY/     a corpus (`EncodedCorpus`)
    corpus.json       what KEY is a digest of: the format, the corpus file's SHA-256, how it is read; the number of
                      documents, the bad lines, the different sets of fields
    ids, raw          the documents' ids and JSON, one after the other; ids.at, raw.at (N + 1,) int64: where each begins
    lines, texts      (N, 16) uint8, digests of the lines, and of title and text
    fields            (N,) int32, each document's set of fields
    tokens-VERSION/   token ids: at (N + 1,) int64, values (nnz,) int32, in the order of the text
    terms-VERSION/    terms by number, likewise: at, values (nnz,) int32; names.json has the terms. VERSION is that of
                      the tokenizer or the vocabulary, and of the libraries that make tokens and words
    NAME.old, origin  columns of the corpus before, and the place there of each document (N,) int64, -1 for a new line

WORK/encode/          what the models made of texts (`TextStore`)
    plan.json         the format, and what a text is encoded with
    run-PLAN-NAME/    texts (n, 16) uint8, their digests; dense (n, H) float16; impacts in CSR form: at (n + 1,) int64,
                      terms (nnz,) int32, impacts (nnz,) uint16; cut (n,) bool
    texts-NAME        (N, 16) uint8, the digests of a corpus' texts, in its order
    corpus.json       the corpus that is encoded, and the name of its texts

Numbers are little-endian. A changed corpus is another KEY: only lines whose digest is new are parsed and checked, and
its columns are made of the former ones and of new lines. A process appends the texts that no run has to a run of its
own, so that several machines share the work. A text counts once its digest is there, which is written last. `finish`
makes one run of all, with the bytes of a fresh one.
"""

import json
import os
import shutil
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Final, NamedTuple, Self, TypeAlias
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import orjson

from lightretriever.artifacts.corpus.beir import Corpus, Known, Skipped
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.dtypes import BoolArray, Float16Array, Int32Array, Int64Array, UInt8Array, UInt16Array
from lightretriever.artifacts.errors import CorpusError, RecipeError, ResumeError
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.files.workdir import check_plan, read_json, write_atomically
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.progress import tracked
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = [
    "FORMAT",
    "STORE_FORMAT",
    "Digests",
    "EncodedCorpus",
    "ImpactRow",
    "ModelRows",
    "Part",
    "Rows",
    "TermCounts",
    "TermNumbers",
    "TextStore",
    "csr",
    "encoded_corpus",
    "first_rows",
    "text_digest",
    "text_digests",
]

FORMAT: Final = 4
"""Of an encoded corpus. Another one is needed where our own code makes other tokens or words of a text, too."""

STORE_FORMAT: Final = 2
"""Of a text store."""

_FACTS: Final = "corpus.json"
_DIGEST_BYTES: Final = 16
_BATCH: Final = 1024
_OLD: Final = ".old"
_SYNC_S: Final = 60.0

ImpactRow: TypeAlias = tuple[Int32Array, UInt16Array]
"""Terms (n,), ascending, and impacts (n,) of a document."""


@dataclass(frozen=True)
class Rows:
    """Whole numbers of n texts: those of text i are `values[at[i]:at[i + 1]]`. `at` (n + 1,) int64, `values` int32."""

    at: Int64Array
    values: Int32Array

    @classmethod
    def of(cls, rows: Sequence[Int32Array]) -> Self:
        """Join the numbers (n_i,) of each text."""
        return cls(np.cumsum([0, *map(len, rows)]).astype(np.int64), np.concatenate([np.empty(0, np.int32), *rows]))

    def __len__(self) -> int:
        return len(self.at) - 1

    def __getitem__(self, row: int) -> Int32Array:
        return self.values[self.at[row] : self.at[row + 1]]

    def __iter__(self) -> Iterator[Int32Array]:
        return (self[row] for row in range(len(self)))

    def places(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Where the values of texts are, one text after the other, and `at` of them."""
        lengths = self.at[rows + 1] - self.at[rows]
        at = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return np.repeat(self.at[rows] - at[:-1], lengths) + np.arange(at[-1]), at

    def take(self, rows: Int64Array) -> "Rows":
        """Copy the rows of some texts."""
        places, at = self.places(rows)
        return Rows(at, self.values[places])


class TermNumbers:
    """Terms by number, in the order in which they came."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names: list[str] = list(names)
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def of(self, terms: Iterable[str]) -> Int32Array:
        """The numbers (n,) of terms; new terms get new ones."""
        found = []
        for term in terms:
            number = self._numbers.setdefault(term, len(self.names))
            if number == len(self.names):
                self.names.append(term)
            found.append(number)
        return np.array(found, np.int32)

    def find(self, term: str) -> int | None:
        """The number of a term; None for one that has not come."""
        return self._numbers.get(term)


@dataclass(frozen=True)
class TermCounts:
    """The terms of n texts as numbers, in the order of the text and as often as it has them. `names` are the terms by
    number, in the order in which the texts have them first."""

    terms: Rows
    names: list[str]

    @classmethod
    def of(cls, texts: Iterable[Sequence[str]]) -> Self:
        """Number the terms of texts."""
        numbers, at, terms = TermNumbers(), array("q", [0]), array("i")
        for text in texts:
            terms.frombytes(numbers.of(text).tobytes())
            at.append(len(terms))
        return cls(Rows(np.array(at, np.int64), np.array(terms, np.int32)), numbers.names)

    def __len__(self) -> int:
        return len(self.terms)

    def sorted(self, start: int, stop: int) -> tuple[Int64Array, Int32Array, Int32Array]:
        """The texts from `start` on up to `stop` in CSR form: `indptr` (n + 1,), different terms (nnz,), ascending in
        each text, and how often it has them, counts (nnz,)."""
        at, size = self.terms.at[start : stop + 1], max(1, len(self.names))
        rows = np.repeat(np.arange(stop - start), np.diff(at))
        found, counts = np.unique(rows * size + self.terms.values[at[0] : at[-1]], return_counts=True)
        indptr = np.searchsorted(found, np.arange(stop - start + 1) * size)
        return indptr.astype(np.int64), (found % size).astype(np.int32), counts.astype(np.int32)

    def parts(self, size: int = 65_536) -> Iterator[tuple[int, int]]:
        """The texts in parts: first, and one after the last."""
        for start in range(0, len(self), size):
            yield start, min(start + size, len(self))


@dataclass(frozen=True)
class _Texts:
    """Texts one after the other: text i is `content[at[i]:at[i + 1]]`."""

    content: UInt8Array
    at: Int64Array

    @classmethod
    def open(cls, file: Path, count: int) -> Self:
        """Map so many texts. Raises ResumeError where the file, or that of their ends, is missing or damaged."""
        ends = file.with_name(f"{file.name}.at")
        texts = cls(_mapped(file, "u1"), _mapped(ends, "<i8"))
        _check_length(ends, len(texts.at), count + 1)
        _check_length(file, len(texts.content), int(texts.at[-1]))
        return texts

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
    digests: UInt8Array
    _ids: _Texts
    _raw: _Texts

    @classmethod
    def of(cls, corpus: Corpus, folder: Path, *, shared: bool = False) -> Self:
        """The encoded corpus below `folder`, which is written unless it is there. Others are removed, unless the folder
        is `shared` with processes that may use them; for a corpus with a limit, as a trial has, those without one stay.
        Raises CorpusError for a bad line or no document."""
        facts = {"format": FORMAT, "corpus_sha256": corpus.sha256(), "limit": corpus.limit}
        facts |= {"skip_bad": corpus.skip_bad, "kinds": corpus.fields}
        key = blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=_DIGEST_BYTES).hexdigest()
        if not (folder / key / _FACTS).is_file():
            with _new_folder(folder / key) as new:
                _write(corpus, facts, new, _former(folder, facts))
        for other in () if shared else [*folder.iterdir(), *(folder / key).glob("*.partial")]:
            trial = corpus.limit is not None and _is_of_all(other)
            if other.name != key and other.is_dir() and not trial:  # another corpus, or what a killed process left
                shutil.rmtree(other)
        return cls.open(folder / key)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map what `of` wrote. Raises ResumeError where it is damaged."""
        facts = read_json(folder / _FACTS)
        skipped, count = Skipped(facts["skipped"], facts["reasons"]), facts["documents"]
        ids, raw = (_Texts.open(folder / name, count) for name in _TEXTS)
        digests = _mapped(folder / "texts", "u1", _DIGEST_BYTES)
        _check_length(folder / "texts", len(digests), count)
        return cls(folder, facts, skipped, digests, ids, raw)

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
        name = f"tokens-{tokenizer.version}{'-queries' * apart}"
        made = self._column(name, lambda: _Tokens(tokenizer, apart))
        return Rows(_mapped(made / "at", "<i8"), _mapped(made / "values", "<i4"))

    def terms(self, vocabulary: Vocabulary) -> TermCounts:
        """The terms of a vocabulary of words, or one of tokens, counted in every document."""
        made = self._column(f"terms-{vocabulary.version}", lambda: _Terms(vocabulary))
        rows = Rows(_mapped(made / "at", "<i8"), _mapped(made / "values", "<i4"))
        return TermCounts(rows, orjson.loads((made / "names.json").read_bytes()))

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
        with _new_folder(folder) as new, (new / "at").open("wb") as at, (new / "values").open("wb") as values:
            end = 0
            at.write(np.int64(end).tobytes())
            for start in tracked(range(0, len(self), _BATCH), name.partition("-")[0], total=None, unit="batches"):
                places = origin[start : start + _BATCH]
                raws = self.raws(start, start + len(places))
                fresh = iter(column.read([_document(raws[row]).full_text for row in np.flatnonzero(places < 0)]))
                rows = Rows.of([next(fresh) if place < 0 else column.taken(place) for place in places.tolist()])
                at.write((rows.at[1:] + end).tobytes())
                values.write(rows.values.astype(np.int32, copy=False).tobytes())
                end += int(rows.at[-1])
            if column.names is not None:
                (new / "names.json").write_bytes(orjson.dumps(column.names))
        shutil.rmtree(old, ignore_errors=True)
        if not any(self.folder.glob(f"*{_OLD}")):
            (self.folder / "origin").unlink(missing_ok=True)
        return folder


def encoded_corpus(recipe: Recipe, *, shared: bool = False) -> EncodedCorpus:
    """The corpus of a recipe, below its work directory; see `EncodedCorpus.of`."""
    return EncodedCorpus.of(recipe.corpus.open(), recipe.work / "encoded", shared=shared)


def text_digest(text: str) -> bytes:
    """The digest that identifies a text: 16 bytes."""
    return blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()


def text_digests(texts: Iterable[str]) -> UInt8Array:
    """The digests of texts, (n, 16)."""
    return np.frombuffer(b"".join(map(text_digest, texts)), np.uint8).reshape(-1, _DIGEST_BYTES)


class Part(NamedTuple):
    """Part `number` of `of` of a corpus' shards: from that one on, each `of`-th."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `I/N`. Raises RecipeError for another form, or a number outside of 1..N."""
        number, _, of = text.partition("/")
        if number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
            return cls(int(number), int(of))
        raise RecipeError(f"--part is {text!r}, expected I/N with I from 1 to N.", remedy="Write 1/4, 2/4, 3/4, 4/4.")

    def has(self, shards: Int64Array) -> BoolArray:
        """Whether each shard, counted from 0, belongs to it."""
        own: BoolArray = shards % self.of == self.number - 1
        return own

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


def csr(rows: Sequence[ImpactRow]) -> tuple[Int64Array, Int32Array, UInt16Array]:
    """The terms and impacts of n texts as `indptr` (n + 1,), `terms` (nnz,) and `impacts` (nnz,)."""
    terms = Rows.of([terms for terms, _ in rows])
    return terms.at, terms.values, np.concatenate([np.empty(0, np.uint16), *(impacts for _, impacts in rows)])


@dataclass(frozen=True)
class ModelRows:
    """Vectors and impacts of n texts: `dense` (n, H) float16, L2-normalised before rounding; `terms`, token ids,
    ascending in each text, and beside them `impacts` (nnz,) uint16; `cut` (n,) bool, whether a text is longer than one
    reads."""

    dense: Float16Array
    terms: Rows
    impacts: UInt16Array
    cut: BoolArray

    @classmethod
    def of(cls, dense: Float16Array, sparse: Sequence[ImpactRow], cut: Sequence[bool]) -> Self:
        """Of vectors, and the terms and impacts of each text."""
        at, terms, impacts = csr(sparse)
        return cls(dense, Rows(at, terms), impacts, np.array(cut, np.bool_))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """One or more parts as one."""
        lengths = np.concatenate([np.diff(part.terms.at) for part in parts])
        return cls(
            np.concatenate([part.dense for part in parts]),
            Rows(
                np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
                np.concatenate([part.terms.values for part in parts]),
            ),
            np.concatenate([part.impacts for part in parts]),
            np.concatenate([part.cut for part in parts]),
        )

    def __len__(self) -> int:
        return len(self.cut)

    def take(self, rows: Int64Array) -> "ModelRows":
        """Copy the rows of some texts."""
        places, at = self.terms.places(rows)
        return ModelRows(self.dense[rows], Rows(at, self.terms.values[places]), self.impacts[places], self.cut[rows])

    def sparse(self) -> list[ImpactRow]:
        """The terms and impacts of each text."""
        return [
            (self.terms.values[start:end], self.impacts[start:end]) for start, end in pairwise(self.terms.at.tolist())
        ]


class TextStore:
    """Vectors and impacts of texts, found by digest, all made by one plan."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    def begin(cls, path: Path, plan: dict[str, Any]) -> Self:
        """Begin a job, or go on with one. `plan` names every setting that changes what a text is encoded to; its
        `dimension` is H, and `shard_size` how many documents a part is made of at a time.

        Raises ResumeError, naming each difference, when the directory was begun with another plan.
        """
        plan = {"format": STORE_FORMAT, **plan}
        check_plan(path / "plan.json", plan)
        store = cls(path)
        store.plan = plan  # that of the file may be another's by now, who began at the same time
        return store

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The settings that texts are encoded with. Raises ResumeError when no job was begun."""
        return read_json(self.path / "plan.json")

    @property
    def documents(self) -> Any:
        """The facts of the corpus that `finish` was given. Raises ResumeError while none is encoded to its end."""
        return self._corpus["documents"]

    @property
    def skipped(self) -> int:
        """How many bad lines of the corpus were left out. Raises ResumeError as `documents` does."""
        return int(self._corpus["skipped"])

    @cached_property
    def texts(self) -> UInt8Array:
        """The digests (N, 16) of the corpus' texts, in its order. Raises ResumeError as `documents` does."""
        return _mapped(self.path / self._corpus["texts"], "u1", _DIGEST_BYTES)

    def find(self, texts: UInt8Array) -> Int64Array:
        """Where texts with these digests (n, 16) are among all that are here, (n,); -1 for one that is not."""
        return self._places.find(texts)

    def rows(self, places: Int64Array) -> ModelRows:
        """Copy the rows of the texts at these places (n,)."""
        if len(self._runs) == 1:
            return self._runs[0][1].take(places)
        ends = np.cumsum([len(rows) for _, rows in self._runs])
        run = np.searchsorted(ends, places, side="right")
        parts = [ModelRows.of(np.zeros((0, self.plan["dimension"]), np.float16), [], [])]
        for number, (_, rows) in enumerate(self._runs):
            parts.append(rows.take(places[run == number] - (ends[number] - len(rows))))
        return ModelRows.joined(parts).take(np.argsort(np.argsort(run, kind="stable"), kind="stable"))

    def counts(self, places: Int64Array) -> tuple[int, int]:
        """How many terms the texts at these places (n,) have together, and how many texts are cut."""
        lengths = np.concatenate([np.empty(0, np.int64), *(np.diff(rows.terms.at) for _, rows in self._runs)])
        cut = np.concatenate([np.empty(0, np.bool_), *(rows.cut for _, rows in self._runs)])
        return int(lengths[places].sum()), int(cut[places].sum())

    def places(self) -> Int64Array:
        """Where the corpus' texts are, (N,), for `rows`. Raises ResumeError when some are missing, and names their
        parts."""
        if missing := self.missing_shards():
            parts = self.missing_parts()
            options = [f"--part {part}" for part in parts] if parts[0].of > 1 else ["--from encode"]
            commands = " and ".join(f"`lightretriever build {option}`" for option in options)
            shards = -(-len(self.texts) // self.plan["shard_size"])
            raise ResumeError(
                f"{self.path}: {len(missing)} of {shards} shards are not there.",
                remedy=f"Run {commands} with this recipe.",
            )
        return self._found

    def whole(self) -> ModelRows:
        """Map the rows of the corpus' texts where they lie in one run, in this order. Raises ResumeError as
        `places` does."""
        places = self.places()
        if len(self._runs) == 1 and np.array_equal(places, np.arange(len(self._runs[0][1]))):
            return self._runs[0][1]
        return self.rows(places)

    def batches(self) -> Iterator[ModelRows]:
        """Give the rows of the corpus' texts, a shard at a time. Raises ResumeError as `places` does."""
        places, size = self.places(), self.plan["shard_size"]
        for start in range(0, len(places), size):
            yield self.rows(places[start : start + size])

    def missing_shards(self) -> list[int]:
        """The shards of the corpus of which a text is missing, from 0 on. Raises ResumeError as `documents` does."""
        rows = np.flatnonzero(self._found < 0)
        return sorted(set((rows // self.plan["shard_size"]).tolist()))

    def missing_parts(self) -> list[Part]:
        """The parts that lack shards, of as many as the corpus was encoded in; 1/1 for one that was encoded at once.
        Raises ResumeError as `documents` does."""
        of = self._corpus["parts"]
        return [Part(number + 1, of) for number in sorted({shard % of for shard in self.missing_shards()})]

    @contextmanager
    def adding(self) -> Iterator[Callable[[UInt8Array, ModelRows], None]]:
        """A function that adds n >= 1 texts, given by their digests (n, 16), and raises DiskError. They stay, whatever
        ends the block."""
        run = _Run(self.path / f"{self._prefix}{uuid4().hex}")
        try:
            yield run.add
        finally:
            run.close()
            self._forget()

    def finish(
        self, texts: UInt8Array, documents: Any, *, skipped: int = 0, part: Part | None = None, keep: bool = False
    ) -> None:
        """Record of which `texts` (N, 16) the corpus `documents` is made, and how many bad lines were left out. What
        was made of them becomes one run, and all else is removed, unless other processes make a `part`, or other texts
        are to be kept."""
        name = f"texts-{_name(texts)}"
        write_atomically(self.path / name, texts.tobytes())
        made = {"documents": documents, "texts": name, "skipped": skipped, "parts": part.of if part else 1}
        write_atomically(self.path / _FACTS, json.dumps(made, indent=1).encode() + b"\n")
        for former in ("texts", "_found"):
            vars(self).pop(former, None)
        if part is None and not keep:
            self.places()  # while a text is missing, nothing is removed
            self._tidy(texts[first_rows(texts)], name)

    def others(self, texts: UInt8Array) -> int:
        """How many texts are here besides these (N, 16)."""
        known = np.concatenate([_void(texts), *(_void(run) for run, _ in self._runs)])
        return len(np.unique(known)) - len(np.unique(_void(texts)))

    def _tidy(self, texts: UInt8Array, name: str) -> None:
        kept = self.path / f"{self._prefix}{_name(texts)}"
        if kept.is_dir() and not np.array_equal(_run(kept, self.plan["dimension"])[0], texts):  # it is damaged
            kept.rename(self.path / f"{self._prefix}{uuid4().hex}")
            self._forget()
        runs = self._folders()
        if not kept.is_dir() and len(runs) == 1 and np.array_equal(self._runs[0][0], texts):
            runs[0].rename(kept)
        elif not kept.is_dir() and len(texts):
            with _new_folder(kept) as new, closing(_Run(new)) as run:
                for start in range(0, len(texts), _BATCH):
                    part = texts[start : start + _BATCH]
                    run.add(part, self.rows(self.find(part)))
        for other in self.path.iterdir():
            if other.is_dir() and other != kept:
                shutil.rmtree(other)
            elif other.name.startswith("texts-") and other.name != name:
                other.unlink()
        self._forget()

    def _forget(self) -> None:
        for name in ("_runs", "_places", "_found"):
            vars(self).pop(name, None)

    def _folders(self) -> list[Path]:
        return sorted(folder for folder in self.path.glob(f"{self._prefix}*") if not folder.suffix)

    @property
    def _prefix(self) -> str:
        """Runs that were made by another plan, and copied here, have other names."""
        return f"run-{blake2b(json.dumps(self.plan, sort_keys=True).encode(), digest_size=4).hexdigest()}-"

    @cached_property
    def _runs(self) -> list[tuple[UInt8Array, ModelRows]]:
        return [_run(folder, self.plan["dimension"]) for folder in self._folders()]

    @cached_property
    def _found(self) -> Int64Array:
        """Where the corpus' texts are, (N,); -1 for one that is not."""
        return self.find(self.texts)

    @cached_property
    def _places(self) -> "Digests":
        return Digests(np.concatenate([np.empty((0, _DIGEST_BYTES), np.uint8), *(texts for texts, _ in self._runs)]))

    @property
    def _corpus(self) -> dict[str, Any]:
        file = self.path / _FACTS
        if not file.is_file():
            raise ResumeError(
                f"{self.path}: the corpus is not encoded to its end.",
                remedy="Run `lightretriever build --from encode` with this recipe.",
            )
        return read_json(file)


class _Run:
    """Appends to the columns of a new folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files, self._end, self._synced = folder, dict[str, BinaryIO](), 0, monotonic()

    def add(self, texts: UInt8Array, rows: ModelRows) -> None:
        """Add n >= 1 texts."""
        at = rows.terms.at[1:] + self._end
        if not self._files:
            with writing(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
            at = np.concatenate([[0], at])
        columns: list[npt.NDArray[Any]] = [rows.dense, at, rows.terms.values, rows.impacts, rows.cut, texts]
        for (name, dtype), values in zip(_MODEL.items(), columns, strict=True):
            with writing(self._folder / name):
                if name not in self._files:
                    self._files[name] = (self._folder / name).open("wb", buffering=0)
                left = memoryview(values.astype(dtype, copy=False).tobytes())
                while left:
                    left = left[self._files[name].write(left) :]
        self._end = int(at[-1])
        if monotonic() - self._synced >= _SYNC_S:
            self._sync()

    def close(self) -> None:
        """Close the files."""
        self._sync()
        for file in self._files.values():
            file.close()

    def _sync(self) -> None:
        with writing(self._folder):
            for file in self._files.values():
                os.fsync(file.fileno())
        self._synced = monotonic()


_MODEL: Final = {"dense": "<f2", "at": "<i8", "terms": "<i4", "impacts": "<u2", "cut": "?", "texts": "u1"}


def _run(folder: Path, dimension: int) -> tuple[UInt8Array, ModelRows]:
    """The texts of a run that are whole, and what was made of them."""
    size = (folder / "texts").stat().st_size if (folder / "texts").is_file() else 0
    count = size // _DIGEST_BYTES
    at = _mapped(folder / "at", "<i8", count=count + 1) if count else np.zeros(1, np.int64)
    terms, impacts = (_mapped(folder / name, _MODEL[name], count=int(at[-1])) for name in ("terms", "impacts"))
    dense, cut = _mapped(folder / "dense", "<f2", dimension, count), _mapped(folder / "cut", "?", count=count)
    return _mapped(folder / "texts", "u1", _DIGEST_BYTES, count), ModelRows(dense, Rows(at, terms), impacts, cut)


class Digests:
    """Finds texts or lines by their digests (n, 16)."""

    def __init__(self, digests: UInt8Array) -> None:
        whole = _void(digests)
        self._order = np.argsort(whole, kind="stable")
        self._sorted = whole[self._order]

    def find(self, digests: UInt8Array) -> Int64Array:
        """The places (m,) of digests (m, 16), the first of equal ones; -1 for others."""
        if not len(self._sorted):
            return np.full(len(digests), -1, np.int64)
        wanted = _void(digests)
        found = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return np.where(self._sorted[found] == wanted, self._order[found], -1)


def _void(digests: UInt8Array) -> npt.NDArray[np.void]:
    return np.ascontiguousarray(digests).view(f"V{_DIGEST_BYTES}")[:, 0]


def first_rows(digests: UInt8Array) -> Int64Array:
    """The places (m,), ascending, where each of the different digests (n, 16) comes first."""
    return np.sort(np.unique(_void(digests), return_index=True)[1])


def _name(digests: UInt8Array) -> str:
    return blake2b(digests.tobytes(), digest_size=_DIGEST_BYTES).hexdigest()


class _Column(ABC):
    """A column on its way: rows of whole numbers, each made of a text or taken from the column before. `names` are what
    the numbers stand for, where that is not known otherwise."""

    names: list[str] | None = None

    def begin(self, old: Path) -> None:
        """Take rows from a folder."""
        self.old = Rows(_mapped(old / "at", "<i8"), _mapped(old / "values", "<i4"))

    @abstractmethod
    def read(self, texts: list[str]) -> Iterable[Int32Array]:
        """The rows of texts, each made when it is asked for."""

    def taken(self, place: int) -> Int32Array:
        """A row of the column before."""
        return self.old[place]


class _Tokens(_Column):
    def __init__(self, tokenizer: TextTokenizer, queries: bool) -> None:
        self._tokenizer, self._queries = tokenizer, queries

    def read(self, texts: list[str]) -> Iterable[Int32Array]:
        return self._tokenizer.as_queries(texts) if self._queries else self._tokenizer.encode_batch(texts)


class _Terms(_Column):
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary, self._numbers = vocabulary, TermNumbers()
        self.names = self._numbers.names

    def begin(self, old: Path) -> None:
        super().begin(old)
        self._old_names: list[str] = orjson.loads((old / "names.json").read_bytes())

    def read(self, texts: list[str]) -> Iterable[Int32Array]:
        return map(self._numbers.of, self._vocabulary.terms_of(texts) if texts else ())

    def taken(self, place: int) -> Int32Array:
        return self._numbers.of(self._old_names[term] for term in self.old[place].tolist())


_TEXTS: Final = ("ids", "raw")


class _Former:
    """The corpus before, by its lines."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.corpus = EncodedCorpus.open(folder)
        self._fields = _mapped(folder / "fields", "<i4")
        self._lines = Digests(_mapped(folder / "lines", "u1", _DIGEST_BYTES))

    def columns(self) -> list[Path]:
        """The folders of its columns."""
        return [folder for folder in self.folder.iterdir() if folder.is_dir() and not folder.suffix]

    def known(self, line: bytes) -> Known | None:
        """The document of a line; None for a line that the corpus before lacked."""
        row = int(self._lines.find(np.frombuffer(_line_digest(line), np.uint8)[None])[0])
        if row < 0:
            return None
        return Known(self.corpus.ids(row, row + 1)[0], tuple(self.corpus.facts["fields"][self._fields[row]]), row)


def _former(folder: Path, facts: dict[str, Any]) -> _Former | None:
    """The largest corpus that was encoded before, the latest of equal ones, if it was read in the same way."""
    whole = [file for file in folder.glob(f"*/{_FACTS}") if not file.parent.suffix]  # the others are being written
    alike = [
        (found["documents"], file.stat().st_mtime_ns, file.parent)
        for file, found in ((file, read_json(file)) for file in whole)
        if all(found.get(name) == facts[name] for name in ("format", "kinds"))
    ]
    return _Former(max(alike)[2]) if alike else None


def _is_of_all(folder: Path) -> bool:
    """Whether a folder has a corpus that was read without a limit."""
    return (folder / _FACTS).is_file() and read_json(folder / _FACTS)["limit"] is None


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
    if corpus.sha256() != facts["corpus_sha256"]:
        raise CorpusError(f"{corpus.path}: changed while it was read.", remedy="Run it again once the file is whole.")
    if not fields:
        raise CorpusError(f"{corpus.path}: there is no document in it.", remedy="Give a corpus with documents.")
    (new / "fields").write_bytes(fields.tobytes())
    for column in () if former is None else former.columns():
        shutil.copytree(column, new / f"{column.name}{_OLD}", copy_function=_link)
        (new / "origin").write_bytes(origin.tobytes())
    facts = {**facts, "documents": len(fields), "skipped": corpus.skipped.count, "reasons": corpus.skipped.reasons}
    (new / _FACTS).write_bytes(orjson.dumps(facts | {"fields": [list(names) for names in sets]}))


def _link(source: str, target: str) -> None:
    """A second name for a file, or a copy where the file system has no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


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


def _check_length(file: Path, found: int, expected: int) -> None:
    if found != expected:
        raise _damaged(file, f"it has {found:,} values, expected {expected:,}")


def _damaged(file: Path, reason: object) -> ResumeError:
    remedy = f"Delete {file.parent}, and run the same command again."
    return ResumeError(f"{file}: can't be read: {reason}.", remedy=remedy)


def _mapped(file: Path, dtype: str, width: int | None = None, count: int | None = None) -> npt.NDArray[Any]:
    """The numbers of a file, (n,) or (n, width), mapped: all, or the first `count`. Raises ResumeError where it is
    missing or damaged."""
    try:
        if count == 0 or not file.stat().st_size:
            return np.zeros(0 if width is None else (0, width), dtype)
        numbers: npt.NDArray[Any] = np.memmap(file, dtype, "r", shape=None if count is None else count * (width or 1))
        return numbers if width is None else numbers.reshape(-1, width)
    except (OSError, ValueError) as error:
        raise _damaged(file, error) from error
