"""Writing an impact index, which Anserini and pyserini can read too: the Lucene fields that `docs/architecture.md`
names, in one segment, documents in their order. Documents that come later are written beside an index, and read behind
its own.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, Self
from weakref import finalize

import numpy as np
import orjson

from lightretriever.artifacts.documents.fields import NAMES, FieldKind, indexed_values
from lightretriever.artifacts.dtypes import Int64Array, IntegerArray
from lightretriever.artifacts.errors import BundleError, JavaError
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import (
    JavaObject,
    java_call,
    java_class,
    pack_ints,
    pack_parts,
    pack_texts,
    utf8,
)
from lightretriever.artifacts.sparse.vocabulary import Language, word_analyzer
from lightretriever.artifacts.tokens.tokenizer import text_of

_BUFFER_MB: Final = 256.0  # what Lucene collects in memory before it writes a segment
_LATER_BUFFER_MB: Final = 32.0
_CHUNK_BYTES: Final = 16 << 20  # what one call into Java carries
_CHUNK_DOCUMENTS: Final = 4096
_DISK_ERRORS: Final = ("IOException", "FileSystemException", "AccessDeniedException")


class ImpactIndexWriter:
    """Writes the index that `ImpactIndex` opens: a context manager that commits at its end, or after an exception
    removes what it wrote.

    One thread at a time. The directory `path` must not exist or be empty; it is complete only after `close()`.
    """

    _later = False

    def __init__(
        self,
        path: Path,
        fields: Mapping[str, FieldKind] | None = None,
        *,
        language: Language | None = None,
        positions: bool = False,
    ) -> None:
        """`fields` are the documents' declared fields, see `artifacts.documents.fields`. With a language, the spellings
        of title and text are indexed too, see `artifacts.sparse.index`; with `positions`, those of its words.

        Raises BundleError when `path` is a directory that is not empty, JavaError when Java or the disk fails.
        """
        if path.is_dir() and any(path.iterdir()):
            raise BundleError(f"{path} is not empty.", remedy="Remove it, or write the index elsewhere.")
        self.path = path
        self.count = 0
        self._new_folder = not path.exists()
        self._spellings = language is not None
        self._fields: dict[str, FieldKind] = {**(fields or {}), NAMES: "keyword"}
        self._java = java_class("lightretriever.IndexBuilder")
        analyzer = None if language is None else word_analyzer(language)
        arguments = (analyzer, positions, _LATER_BUFFER_MB if self._later else _BUFFER_MB, self._later)
        self._handle = java_call(self._java.open, bytearray(bytes(path.absolute())), *arguments)

    def close(self) -> None:
        """Merge to one segment and commit. Rolls back and raises ValueError when two documents had the same id."""
        if self._handle is None:
            return
        try:
            self._call(self._java.commit)
        except (JavaError, ValueError):
            self.rollback()
            raise
        self._handle = None
        (self.path / "write.lock").unlink(missing_ok=True)

    def rollback(self) -> None:
        """Forget all that was added, and remove the files; the directory too, if the writer made it."""
        if self._handle is None:
            return
        try:
            self._call(self._java.rollback)
        finally:
            self._handle = None
            # Lucene keeps the lock file, and after a disk error more; the directory was empty at the start.
            for path in self.path.iterdir():
                if path.name.startswith(("_", "segments", "pending_segments", "write.lock")):
                    path.unlink()
            if self._new_folder and not any(self.path.iterdir()):
                self.path.rmdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.close()
        else:
            self.rollback()

    def _call(self, function: JavaObject, *arguments: bytearray) -> None:
        if self._handle is None:
            raise ValueError(f"The writer of {self.path} is closed.")
        java_call(self._java.reserve, self._handle, sum(map(len, arguments)))
        try:
            java_call(function, self._handle, *arguments)
        except JavaError as error:
            if not error.message.startswith(_DISK_ERRORS):
                raise
            raise JavaError(
                f"The Lucene index {self.path} can't be written ({error.message}).",
                remedy="Look at free space and permissions, and run the same command again.",
            ) from error

    def add(
        self,
        ids: Sequence[str],
        documents: Sequence[bytes],
        indptr: IntegerArray,
        terms: IntegerArray,
        impacts: IntegerArray,
        names: Sequence[str] | None = None,
        records: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Add n documents, in order.

        `ids` are n different texts, `documents` n JSON texts in UTF-8. Document i has the terms
        `terms[indptr[i]:indptr[i + 1]]` (each once) with the `impacts` at the same places (1 to 65,535); `indptr` has
        shape (n + 1,), `terms` and `impacts` (nnz,). A term is a place in `names`, or a token id where there are none.
        `records` are the n JSON objects, checked as `document_of` does, where fields, names or spellings are indexed.
        Raises ValueError for what is no Unicode, after which the writer is to be rolled back; `close()` finds an id
        used twice.
        """
        identities = utf8("document id", ids)
        for start, end in _chunks(identities, documents, np.diff(indptr).tolist()):
            texts = [text_of(record) for record in records[start:end]] if self._spellings else []
            rows = indptr[start : end + 1]
            first, last = int(rows[0]), int(rows[-1])
            different, places = np.unique(terms[first:last], return_inverse=True)
            spelt = (f"{term}" if names is None else names[term] for term in different.tolist())
            self._call(
                self._java.addImpacts,
                pack_parts(identities[start:end]),
                pack_parts(documents[start:end]),
                pack_ints(rows[1:] - first),
                pack_texts("term", spelt),
                pack_ints(places),
                pack_ints(impacts[first:last]),
                *self._values(end - start, records[start:end]),
                pack_texts("text", texts),
            )
            self.count += end - start

    def _values(self, count: int, records: Sequence[Any]) -> tuple[bytearray, bytearray]:
        """The values of so many documents' declared fields: where those of each end, and each one behind its field."""
        values: list[str] = []
        rows = np.zeros(count, np.int32)
        for row, record in enumerate(records):
            for name, value in indexed_values(record, self._fields):
                values += [f"{self._fields[name][0]}:{name}", value]
            rows[row] = len(values) // 2
        return pack_ints(rows), pack_texts("value", values)

    def add_texts(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        """Add n documents, in order, whose words are indexed with their frequencies, for BM25. ValueError for what is
        no Unicode."""
        identities, contents = utf8("document id", ids), utf8("the text of a document", texts)
        for start, end in _chunks(identities, contents, repeat(0, len(ids))):
            self._call(self._java.addTexts, pack_parts(identities[start:end]), pack_parts(contents[start:end]))
            self.count += end - start


def _chunks(ids: Sequence[bytes], texts: Sequence[bytes], terms: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ranges of documents of a size that one call into Java carries well. `terms` is how many each document has."""
    start = size = 0
    for i, (name, text, count) in enumerate(zip(ids, texts, terms, strict=True)):
        size += len(name) + len(text) + 8 * count
        if size >= _CHUNK_BYTES or i + 1 - start == _CHUNK_DOCUMENTS:
            yield start, i + 1
            start, size = i + 1, 0
    if start < len(ids):
        yield start, len(ids)


def numbered(impacts: Sequence[Mapping[str, int]]) -> tuple[Int64Array, Int64Array, Int64Array, list[str]]:
    """The impacts of n documents by term in CSR form: indptr (n + 1,), the terms' places among all, and impacts (nnz,),
    and the different terms."""
    places = {term: index for index, term in enumerate(dict.fromkeys(chain.from_iterable(impacts)))}
    terms = np.fromiter(map(places.__getitem__, chain.from_iterable(impacts)), np.int64)
    values = np.fromiter(chain.from_iterable(row.values() for row in impacts), np.int64)
    return np.cumsum([0, *map(len, impacts)]), terms, values, list(places)


class LaterIndexWriter(ImpactIndexWriter):
    """Writes documents that are read behind those of an index, which was written with the same settings."""

    _later = True

    def add_rows(self, ids: Sequence[str], documents: Sequence[bytes], impacts: Sequence[Mapping[str, int]]) -> None:
        """Add n documents, in order: ids, JSON, and impacts by term. ValueError on bad input."""
        self.add(ids, documents, *numbered(impacts), [orjson.loads(document) for document in documents])

    def behind(self, index: ImpactIndex) -> ImpactIndex:
        """Return the documents of an index and those added up to now, as one index, which is closed when nothing refers
        to it any more."""
        handle = java_call(self._java.behind, self._handle, index.handle)
        both = ImpactIndex(handle, index.path)
        finalize(both, java_call, java_class("lightretriever.OpenIndex").close, handle).atexit = False
        return both

    def merge(self) -> None:
        """Make one segment of all that was added up to now, beside other calls. JavaError when the disk fails."""
        java_call(self._java.merge, self._handle)
