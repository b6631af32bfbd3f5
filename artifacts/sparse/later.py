"""An impact index for documents that are written later, read behind those of another index."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from weakref import finalize

import numpy as np
from lightretriever.artifacts.corpus.fields import FieldKind
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.java_bytes import from_java, unpack_parts
from lightretriever.artifacts.sparse.jvm import JavaObject, java_call, java_class
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter

__all__ = ["LaterIndexWriter"]


class LaterIndexWriter(ImpactIndexWriter):
    """Writes documents that are read behind those of `index`, to a folder, and goes on after those that are there."""

    def __init__(self, path: Path, index: ImpactIndex, fields: Mapping[str, FieldKind], *, spellings: bool) -> None:
        """`path` is the folder, with the files of a `checkpoint` or none; `fields` and `spellings` are those that
        `index` was written with. Raises JavaError for a damaged checkpoint, and when Java or the disk fails."""
        super().__init__(path, fields, spellings=spellings)
        self._index = index

    def add_rows(self, ids: Sequence[str], documents: Sequence[bytes], impacts: Sequence[Mapping[str, int]]) -> None:
        """Add n documents, in order: ids, JSON, and impacts by term. ValueError on bad input."""
        places = {term: place for place, term in enumerate(dict.fromkeys(chain.from_iterable(impacts)))}
        terms = np.fromiter(map(places.__getitem__, chain.from_iterable(impacts)), np.int64)
        values = np.fromiter(chain.from_iterable(row.values() for row in impacts), np.int64)
        self.add(ids, documents, np.cumsum([0, *map(len, impacts)]), terms, values, list(places))

    def behind(self) -> ImpactIndex:
        """Give the documents of the index and those added up to now, as one index, which is closed when nothing refers
        to it any more."""
        handle = java_call(self._java.behind, self._handle, self._index.handle)
        found = ImpactIndex(handle, self._index.path)
        finalize(found, java_call, java_class("lightretriever.OpenIndex").close, handle).atexit = False
        return found

    def merge(self) -> None:
        """Make one segment of all that was added up to now, beside other calls. JavaError when the disk fails."""
        java_call(self._java.merge, self._handle)

    def checkpoint(self) -> list[Path]:
        """Give the files that have all that was added up to now. They are not changed, and stay until the next call.
        JavaError when the disk fails."""
        names = unpack_parts(from_java(java_call(self._java.checkpoint, self._handle)))
        return [self.path / name.decode() for name in names]

    def _opened(self, analyzer: JavaObject) -> JavaObject:
        self._made = False
        return java_call(self._java.later, bytearray(bytes(self.path.absolute())), analyzer)
