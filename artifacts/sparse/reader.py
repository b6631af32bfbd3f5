"""A Lucene index of one segment, open for reading."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import numpy as np

from lightretriever.artifacts.dtypes import Int32Array
from lightretriever.artifacts.errors import BundleError, JavaError
from lightretriever.artifacts.sparse.java_bytes import from_java, pack_texts, unpack_texts
from lightretriever.artifacts.sparse.jvm import JavaObject, java_call, java_class

RESTORE: Final = "Restore the directory from a copy, or build the bundle again."
"""The remedy for a damaged index."""

_IDS_AT_ONCE: Final = 65_536


class LuceneIndex:
    """A Lucene index of one segment, open for reading. Any number of threads may use it at once.

    The files are memory-mapped, so processes share them. `close()` may come while another thread searches: that search
    ends well, every later call raises JavaError.
    """

    count: int
    """Number of documents."""

    def __init__(self, handle: JavaObject, path: Path) -> None:
        self.path = path
        self.handle = handle
        """Java's OpenIndex, for the calls of this package."""
        self._java = java_class("lightretriever.OpenIndex")
        self.count = int(java_call(self._java.count, handle))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the index in the directory `path`.

        Raises BundleError when it is missing, damaged, or not of one segment, and JavaError when Java can't start.
        """
        java = java_class("lightretriever.OpenIndex")
        try:
            handle = java_call(java.open, bytearray(bytes(path.absolute())))
        except (JavaError, ValueError) as error:
            raise BundleError(f"The Lucene index {path} can't be opened ({error}).", remedy=RESTORE) from error
        try:
            return cls(handle, path)
        except Exception:
            java_call(java.close, handle)
            raise

    def ids(self) -> list[str]:
        """The ids of all documents, in ordinal order."""
        ids: list[str] = []
        for first in range(0, self.count, _IDS_AT_ONCE):  # all at once would fill Java's heap
            count = min(_IDS_AT_ONCE, self.count - first)
            ids += unpack_texts(from_java(java_call(self._java.ids, self.handle, first, count)))
        return ids

    def ordinal(self, document_id: str) -> int | None:
        """The ordinal of the document with this id, None if there is no such document."""
        try:
            (ordinal,) = self.ordinals([document_id]).tolist()
        except ValueError:
            return None  # an id that is no Unicode text can't have been indexed
        return None if ordinal < 0 else ordinal

    def ordinals(self, ids: Sequence[str]) -> Int32Array:
        """The ordinals of the last documents with these ids, (n,) int32, -1 where there is no such document. Raises
        ValueError for an id that is no Unicode text."""
        packed = pack_texts("document id", ids)
        return np.frombuffer(from_java(java_call(self._java.ordinals, self.handle, packed)), "<i4")

    def check(self) -> None:
        """Read every file and compare it with its checksum. Raises JavaError with the file's name on damage."""
        try:
            java_call(self._java.check, self.handle)
        except (JavaError, ValueError) as error:
            if "the index is closed" in str(error):
                raise
            raise JavaError(f"The Lucene index {self.path} is damaged ({error}).", remedy=RESTORE) from error

    def close(self) -> None:
        """Close the index; a second time does nothing."""
        java_call(self._java.close, self.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
