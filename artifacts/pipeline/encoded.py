"""The encoded corpus: every line read and checked once, in columns that later stages map.

WORK/encoded/KEY/     a corpus (`EncodedCorpus`)
    corpus.json       what KEY is a digest of: the format, the corpus file's SHA-256, how it is read; the number of
                      documents, the bad lines
    ids, raw          the documents' ids and JSON, one after the other; ids.at, raw.at (N + 1,) int64: where each begins
    texts             (N, 16) uint8, digests of title and text
    tokens-VERSION/   token ids: at (N + 1,) int64, values (nnz,) int32, in the order of the text
    terms-VERSION/    terms by number, likewise: at, values (nnz,) int32; names.json has the terms. VERSION is that of
                      the tokenizer or the vocabulary, and of the libraries that make tokens and words

A changed corpus is another KEY, and is read again; what the models made of its texts is kept (`pipeline.store`).
"""

import json
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import orjson

from lightretriever.artifacts.corpus.beir import Corpus, Skipped
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.dtypes import Int32Array, Int64Array, UInt8Array
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.files.workdir import read_json
from lightretriever.artifacts.pipeline.columns import DIGEST_BYTES, check_length, mapped, new_folder, text_digest
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.rows import Rows, TermCounts, TermNumbers
from lightretriever.artifacts.progress import tracked
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["FORMAT", "EncodedCorpus", "encoded_corpus"]

FORMAT: Final = 5
"""Of an encoded corpus. Another one is needed where our own code makes other tokens or words of a text, too."""

_FACTS: Final = "corpus.json"
_BATCH: Final = 1024
_TEXTS: Final = ("ids", "raw")


@dataclass(frozen=True)
class _Texts:
    """Texts one after the other: text i is `content[at[i]:at[i + 1]]`."""

    content: UInt8Array
    at: Int64Array

    @classmethod
    def open(cls, file: Path, count: int) -> Self:
        """Map so many texts. Raises ResumeError where the file, or that of their ends, is missing or damaged."""
        ends = file.with_name(f"{file.name}.at")
        texts = cls(mapped(file, "u1"), mapped(ends, "<i8"))
        check_length(ends, len(texts.at), count + 1)
        check_length(file, len(texts.content), int(texts.at[-1]))
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
        is `shared` with processes that may use them. Raises CorpusError for a bad line or no document."""
        facts = {"format": FORMAT, "corpus_sha256": corpus.sha256(), "limit": corpus.limit}
        facts |= {"skip_bad": corpus.skip_bad, "kinds": corpus.fields}
        key = blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()
        if not (folder / key / _FACTS).is_file():
            with new_folder(folder / key) as new:
                _write(corpus, facts, new)
        for other in () if shared else [*folder.iterdir(), *(folder / key).glob("*.partial")]:
            if other.name != key and other.is_dir():  # another corpus, or what a killed process left
                shutil.rmtree(other)
        return cls.open(folder / key)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map what `of` wrote. Raises ResumeError where it is damaged."""
        facts = read_json(folder / _FACTS)
        skipped, count = Skipped(facts["skipped"], facts["reasons"]), facts["documents"]
        ids, raw = (_Texts.open(folder / name, count) for name in _TEXTS)
        digests = mapped(folder / "texts", "u1", DIGEST_BYTES)
        check_length(folder / "texts", len(digests), count)
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
        read = tokenizer.as_queries if apart else tokenizer.encode_batch
        return _rows(self._column(f"tokens-{tokenizer.version}{'-queries' * apart}", read))

    def terms(self, vocabulary: Vocabulary) -> TermCounts:
        """The terms of a vocabulary of words, or one of tokens, counted in every document."""
        numbers = TermNumbers()

        def read(texts: list[str]) -> Iterable[Int32Array]:
            return map(numbers.of, vocabulary.terms_of(texts))

        made = self._column(f"terms-{vocabulary.version}", read, numbers.names)
        return TermCounts(_rows(made), orjson.loads((made / "names.json").read_bytes()))

    def _column(
        self, name: str, read: Callable[[list[str]], Iterable[Int32Array]], names: list[str] | None = None
    ) -> Path:
        """The folder of a column, which is made where it is not there: the numbers that `read` makes of texts, and the
        `names` that they stand for, where that is not known otherwise."""
        folder = self.folder / name
        if folder.is_dir():
            return folder
        with new_folder(folder) as new, (new / "at").open("wb") as at, (new / "values").open("wb") as values:
            end = 0
            at.write(np.int64(end).tobytes())
            for start in tracked(range(0, len(self), _BATCH), name.partition("-")[0], total=None, unit="batches"):
                raws = self.raws(start, min(start + _BATCH, len(self)))
                rows = Rows.of(list(read([_document(raw).full_text for raw in raws])))
                at.write((rows.at[1:] + end).tobytes())
                values.write(rows.values.astype(np.int32, copy=False).tobytes())
                end += int(rows.at[-1])
            if names is not None:
                (new / "names.json").write_bytes(orjson.dumps(names))
        return folder


def encoded_corpus(recipe: Recipe, *, shared: bool = False) -> EncodedCorpus:
    """The corpus of a recipe, below its work directory; see `EncodedCorpus.of`."""
    return EncodedCorpus.of(recipe.corpus.open(), recipe.work / "encoded", shared=shared)


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


def _write(corpus: Corpus, facts: dict[str, Any], new: Path) -> None:
    """Read a corpus into the folder `new`."""
    count = 0
    with ExitStack() as stack:
        ids, raw = (stack.enter_context(closing(_TextWriter(new, name))) for name in _TEXTS)
        texts = stack.enter_context((new / "texts").open("wb"))
        for document in tracked(corpus, "corpus", total=None, unit="documents"):
            ids.add(document.id.encode())
            raw.add(document.raw)
            texts.write(text_digest(document.full_text))
            count += 1
    if corpus.sha256() != facts["corpus_sha256"]:
        raise CorpusError(f"{corpus.path}: changed while it was read.", remedy="Run it again once the file is whole.")
    if not count:
        raise CorpusError(f"{corpus.path}: there is no document in it.", remedy="Give a corpus with documents.")
    facts = {**facts, "documents": count, "skipped": corpus.skipped.count, "reasons": corpus.skipped.reasons}
    (new / _FACTS).write_bytes(orjson.dumps(facts))


def _rows(column: Path) -> Rows:
    return Rows(mapped(column / "at", "<i8"), mapped(column / "values", "<i4"))


def _document(raw: bytes) -> Document:
    record = orjson.loads(raw)
    return Document(record["_id"], record.get("title") or "", record["text"], raw)
