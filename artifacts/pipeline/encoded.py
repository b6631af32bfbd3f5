"""The encoded corpus: every line read and checked once, in columns that later stages map.

WORK/encoded/KEY/     a corpus (`EncodedCorpus`)
    corpus.json       what KEY is a digest of: the format, the corpus file's SHA-256, how it is read; the number of
                      documents, the bad lines
    raw               the documents' JSON, one after the other; at.npy (N + 1,) int64: where each begins
    texts.npy         (N, 16) uint8, digests of title and text

A changed corpus is another KEY, and is read again; what the models made of its texts is kept (`pipeline.store`).
"""

import json
import shutil
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import orjson

from lightretriever.artifacts.corpus.beir import Corpus, Skipped
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.dtypes import Int64Array, UInt8Array
from lightretriever.artifacts.errors import CorpusError, ResumeError
from lightretriever.artifacts.files.reading import file_sha256
from lightretriever.artifacts.files.workdir import read_json
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.rows import TermCounts
from lightretriever.artifacts.pipeline.store import DIGEST_BYTES, column, new_folder, text_digest
from lightretriever.artifacts.reports import tracked
from lightretriever.artifacts.sparse.vocabulary import Vocabulary

FORMAT: Final = 6
_FACTS: Final = "corpus.json"
_BATCH: Final = 1024


@dataclass(frozen=True)
class EncodedCorpus:
    """A corpus that was read. `skipped` are its bad lines; `digests` (N, 16) uint8 are those of title and text.
    `vectors_sha256` is that of the file that has its vectors, if one does."""

    folder: Path
    facts: dict[str, Any]
    skipped: Skipped
    digests: UInt8Array
    _raw: UInt8Array
    _at: Int64Array
    vectors_sha256: str | None = None

    @classmethod
    def of(cls, corpus: Corpus, folder: Path, *, shared: bool = False) -> Self:
        """The encoded corpus below `folder`, which is written unless it is there. Others are removed, unless the folder
        is `shared` with processes that may use them. Raises CorpusError for a bad line or no document."""
        facts = {"format": FORMAT, "corpus_sha256": file_sha256(corpus.path), "limit": corpus.limit}
        facts |= {"skip_bad": corpus.skip_bad, "kinds": corpus.fields}
        key = blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()
        if not (folder / key / _FACTS).is_file():
            with new_folder(folder / key) as new:
                _write(corpus, facts, new)
        for other in () if shared else folder.iterdir():
            if other.name != key and other.is_dir():
                shutil.rmtree(other)
        return cls.open(folder / key)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map what `of` wrote. Raises ResumeError where it is damaged."""
        facts, at, file = read_json(folder / _FACTS), column(folder, "at"), folder / "raw"
        try:
            raw = np.memmap(file, np.uint8, "r")
            if len(raw) != at[-1]:
                raise ValueError(f"it has {len(raw):,} bytes, expected {at[-1]:,}")
        except (OSError, ValueError) as error:
            remedy = f"Delete {folder}, and run the same command again."
            raise ResumeError(f"{file}: can't be read: {error}.", remedy=remedy) from error
        return cls(folder, facts, Skipped(facts["skipped"], facts["reasons"]), column(folder, "texts"), raw, at)

    @property
    def corpus_sha256(self) -> str:
        """SHA-256 of the corpus' file."""
        return str(self.facts["corpus_sha256"])

    @property
    def identity(self) -> dict[str, Any]:
        """The facts that the documents and their vectors depend on, beside the model."""
        facts = {name: self.facts[name] for name in ("corpus_sha256", "limit", "skip_bad")}
        return facts | {"vectors_sha256": self.vectors_sha256}

    def __len__(self) -> int:
        return int(self.facts["documents"])

    def documents(self, start: int, stop: int) -> list[Document]:
        """The documents from `start` on up to `stop`."""
        raws = [self._raw[begin:end].tobytes() for begin, end in pairwise(self._at[start : stop + 1].tolist())]
        records = ((orjson.loads(raw), raw) for raw in raws)
        return [Document(record["_id"], record.get("title") or "", record["text"], raw) for record, raw in records]

    def document(self, row: int) -> Document:
        """A document."""
        return self.documents(row, row + 1)[0]

    def __iter__(self) -> Iterator[Document]:
        return chain.from_iterable(self._parts())

    def _parts(self) -> Iterator[list[Document]]:
        return (self.documents(start, min(start + _BATCH, len(self))) for start in range(0, len(self), _BATCH))

    def texts(self) -> Iterator[str]:
        """Title and text of every document."""
        return (document.full_text for document in self)

    def terms(self, vocabulary: Vocabulary) -> TermCounts:
        """The terms of a vocabulary of words, or one of tokens, counted in every document."""
        parts = tracked(self._parts(), "terms", total=None, unit="batches")
        texts = ([document.full_text for document in part] for part in parts)
        return TermCounts.of(chain.from_iterable(map(vocabulary.terms_of, texts)))


def encoded_corpus(recipe: Recipe, *, shared: bool = False) -> EncodedCorpus:
    """The corpus of a recipe, below its work directory; see `EncodedCorpus.of`. A text with a vector in a file counts
    as another one than the same text without, or with one in another file: it has another digest."""
    corpus = EncodedCorpus.of(recipe.corpus.open(), recipe.work / "encoded", shared=shared)
    if recipe.distil is None or recipe.distil.vectors is None:
        return corpus
    sha256 = file_sha256(recipe.distil.vectors)
    mask = np.frombuffer(bytes.fromhex(sha256), np.uint8)[:DIGEST_BYTES]
    return replace(corpus, digests=corpus.digests ^ mask, vectors_sha256=sha256)


def _write(corpus: Corpus, facts: dict[str, Any], new: Path) -> None:
    """Read a corpus into the folder `new`."""
    at, digests = array("q", [0]), bytearray()
    with (new / "raw").open("wb") as raw:
        for document in tracked(corpus, "corpus", total=None, unit="documents"):
            raw.write(document.raw)
            at.append(at[-1] + len(document.raw))
            digests += text_digest(document.full_text)
    if file_sha256(corpus.path) != facts["corpus_sha256"]:
        raise CorpusError(f"{corpus.path}: changed while it was read.", remedy="Run it again once the file is whole.")
    if not digests:
        raise CorpusError(f"{corpus.path}: there is no document in it.", remedy="Give a corpus with documents.")
    np.save(new / "at.npy", np.array(at, np.int64))
    np.save(new / "texts.npy", np.frombuffer(bytes(digests), np.uint8).reshape(-1, DIGEST_BYTES))
    facts = {**facts, "documents": len(at) - 1, "skipped": corpus.skipped.count, "reasons": corpus.skipped.reasons}
    (new / _FACTS).write_bytes(orjson.dumps(facts))
