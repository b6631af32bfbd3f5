"""Search in an impact index: exact inner products of a weighted query with the documents' impacts.

    score(q, d) = sum over t of q[t] * impact[d, t]

Products and sums are float32. With whole weights nothing is rounded below 2^24; with others a score is off by at most
2^-24 of the products' absolute sum for each term. Lists and documents are read from files beside Lucene's own, by
`artifacts.kernels`; in an index of an older version, which has none, by Java from Lucene's, to the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts import kernels
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.sparse.java_bytes import (
    from_java,
    pack_floats,
    pack_ints,
    pack_text,
    pack_texts,
    unpack_hits,
    unpack_texts,
    utf8,
)
from lightretriever.artifacts.sparse.jvm import JavaObject, java_call, java_class
from lightretriever.artifacts.sparse.reader import RESTORE, LuceneIndex, check_integers, extremes

__all__ = [
    "ASKED_IF_BM25",
    "ASKED_IF_LEARNED",
    "DOCUMENTS_FILE",
    "IMPACTS_FILE",
    "MAX_IMPACT",
    "DocumentSet",
    "ImpactIndex",
]

IMPACTS_FILE: Final = "impacts.plain"
DOCUMENTS_FILE: Final = "documents.plain"
"""The posting lists and the documents once more, as plain numbers and texts, beside Lucene's files."""

MAX_IMPACT: Final = 65_535
_MAX_TERM: Final = int(np.iinfo(np.int32).max)
_MAX_SCORE: Final = float(np.finfo(np.float32).max)
"""Largest impact of a term in a document (it fills an unsigned 16-bit number)."""

ASKED_IF_LEARNED: Final = 0.1
ASKED_IF_BM25: Final = 0.35
"""Good values of `ImpactIndex.asked`: BM25's long lists add little, so asking them is worth it."""


@dataclass(frozen=True, slots=True)
class DocumentSet:
    """Some of an index' documents. bits: (b,) uint8, a bit for every ordinal, the lowest first; count: how many."""

    handle: JavaObject
    bits: npt.NDArray[np.uint8]
    count: int


class ImpactIndex(LuceneIndex):
    """The inverted index of the sparse leg. A document's ordinal is its place in the order of writing."""

    def __init__(self, handle: JavaObject, path: Path) -> None:
        super().__init__(handle, path)
        self._impacts = java_class("lightretriever.ImpactSearch")
        self.asked = ASKED_IF_LEARNED
        """Posting lists that together can add at most this share of the last hit's score are not added up, but asked
        for the documents that the others make promising. From 0 to 1; a matter of speed alone."""
        lists, texts = self._plain(IMPACTS_FILE), self._plain(DOCUMENTS_FILE)
        try:
            self._lists = None if lists is None else kernels.Impacts(lists, self.count)
            self._texts = None if texts is None else kernels.Texts(texts, self.count)
        except ValueError as error:
            raise BundleError(f"The Lucene index {path} can't be opened ({error}).", remedy=RESTORE) from error

    def close(self) -> None:
        """Close the index; a second time does nothing."""
        self._lists = self._texts = None
        super().close()

    def _plain(self, name: str) -> npt.NDArray[np.uint8] | None:
        """Map a file beside Lucene's; None in an index of an older version, which has none."""
        if not java_call(self._java.hasPlain, self.handle, pack_text("file", name)):
            return None
        return np.memmap(self.path / name, np.uint8, "r")

    def search(
        self,
        terms: npt.NDArray[np.integer[Any]],
        weights: npt.NDArray[np.floating[Any]],
        k: int,
        among: DocumentSet | None = None,
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The exact best `k` documents, of those `among`, that score above 0.

        `terms` (t,) are token ids, `weights` (t,) their weights, finite; a token that comes twice weighs the sum, and
        weight 0 is as if the token were not there. Returns ordinals (m,) int64 and scores (m,)
        float32 with m <= k, by descending score, then by ascending ordinal. Raises ValueError on bad arguments.
        """
        _check_query(terms, weights)
        if k < 1:
            raise ValueError(f"k is {k}; it must be 1 or more.")
        if len(terms) == 0 or self.count == 0:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        if (lists := self._lists) is not None:
            return lists.search(_int32(terms), _float32(weights), k, None if among is None else among.bits, self.asked)
        handle = None if among is None else among.handle
        query = (pack_ints(terms), pack_floats(weights), min(k, self.count), handle, self.asked)
        return unpack_hits(from_java(java_call(self._impacts.search, self.handle, *query)))

    def scores(
        self,
        terms: npt.NDArray[np.integer[Any]],
        weights: npt.NDArray[np.floating[Any]],
        ordinals: npt.NDArray[np.integer[Any]],
    ) -> npt.NDArray[np.float32]:
        """The scores (m,) float32 of the documents `ordinals` (m,), as `search` gives them; 0.0 where no term matches.

        Raises ValueError on bad arguments, such as an ordinal that no document has.
        """
        _check_query(terms, weights)
        self.check_ordinals(ordinals)
        if len(terms) == 0 or len(ordinals) == 0:
            return np.zeros(len(ordinals), np.float32)
        if (lists := self._lists) is not None:
            return lists.scores(_int32(terms), _float32(weights), _int64(ordinals))
        wanted = pack_ints(ordinals)
        arguments = (pack_ints(terms), pack_floats(weights), wanted)
        packed = from_java(java_call(self._impacts.scores, self.handle, *arguments))
        return np.frombuffer(packed, dtype="<f4").astype(np.float32)

    def impacts(
        self, terms: npt.NDArray[np.integer[Any]], ordinals: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.int32]:
        """The impact of each term (t,) in each document (m,), (m, t) int32: 0 where the document lacks the term.

        Raises ValueError on bad arguments, such as a term that comes twice.
        """
        _check_query(terms, np.ones(terms.shape, np.float32))
        if np.unique(terms).size < terms.size:
            raise ValueError("a term comes twice; ask for each once.")
        self.check_ordinals(ordinals)
        if len(terms) == 0 or len(ordinals) == 0:
            return np.zeros((len(ordinals), len(terms)), np.int32)
        if (lists := self._lists) is not None:
            return lists.impacts(_int32(terms), _int64(ordinals))
        wanted = pack_ints(ordinals)
        packed = from_java(java_call(self._impacts.impacts, self.handle, pack_ints(terms), wanted))
        return np.frombuffer(packed, dtype="<i4").astype(np.int32).reshape(len(ordinals), len(terms))

    def terms(self, ordinal: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """All terms of a document: ids (n,) int32 ascending, and their impacts (n,) int32.

        An inverted index has to ask every term for it, which takes milliseconds. Raises ValueError on a bad ordinal.
        """
        self.check_ordinals(np.array([ordinal]))
        if (lists := self._lists) is not None:
            return lists.terms(ordinal)
        packed = from_java(java_call(self._impacts.terms, self.handle, ordinal))
        ids, impacts = np.frombuffer(packed, dtype="<i4").astype(np.int32).reshape(2, -1)
        return ids, impacts

    def where(self, condition: Sequence[str]) -> DocumentSet:
        """The documents that a condition holds for: texts as Java's DocumentFilter reads them."""
        packed = pack_texts([utf8("condition", text) for text in condition])
        filters = java_class("lightretriever.DocumentFilter")
        handle = java_call(filters.of, self.handle, *packed)
        bits = np.frombuffer(from_java(java_call(filters.bits, handle)), dtype=np.uint8)
        return DocumentSet(handle, bits, int(java_call(filters.count, handle)))

    def counts(self, field: str, ordinals: npt.NDArray[np.integer[Any]]) -> list[tuple[str, int]]:
        """The values of a keyword field in different documents (m,), each with the number of documents that have it.

        Most frequent first, ties by value. Raises ValueError on a bad ordinal.
        """
        wanted = self.packed_ordinals(ordinals)
        if not wanted:
            return []
        values = java_class("lightretriever.FieldValues")
        packed = from_java(java_call(values.counts, self.handle, wanted, pack_text("field", field)))
        size, *_ = np.frombuffer(packed, dtype="<i4", count=1).tolist()
        numbers = np.frombuffer(packed, dtype="<i4", count=size, offset=4).tolist()
        texts = [text.decode() for text in unpack_texts(packed[4 + 4 * size :], size)]
        return sorted(zip(texts, numbers, strict=True), key=lambda one: (-one[1], one[0]))

    def documents(self, ordinals: npt.NDArray[np.integer[Any]]) -> list[bytes]:
        """The stored JSON of the documents `ordinals` (m,), byte for byte as added. ValueError on a bad ordinal."""
        self.check_ordinals(ordinals)
        if len(ordinals) == 0:
            return []
        if (texts := self._texts) is not None:
            return texts.read(_int64(ordinals))
        packed = from_java(java_call(self._java.documents, self.handle, pack_ints(ordinals)))
        return unpack_texts(packed, len(ordinals))


def _int32(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    return np.ascontiguousarray(values, np.int32)


def _int64(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(values, np.int64)


def _float32(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(values, np.float32)


def _check_query(terms: npt.NDArray[Any], weights: npt.NDArray[Any]) -> None:
    check_integers("terms", terms)
    if weights.shape != terms.shape or weights.dtype.kind != "f":
        raise ValueError(
            f"weights must be floats of the terms' shape {terms.shape}; got {weights.dtype} of shape {weights.shape}."
        )
    if len(terms) == 0:
        return
    least, most = extremes(terms)
    if least < 0 or most > _MAX_TERM:
        raise ValueError(f"terms must be 0 to {_MAX_TERM}; got {least} to {most}.")
    narrow = weights.dtype == np.float32
    largest = kernels.magnitude(_float32(weights)) if narrow else float(np.abs(weights).sum(dtype=np.float64))
    if not largest * MAX_IMPACT < _MAX_SCORE:  # a not-a-number fails this, too
        worst = weights[np.abs(weights).argmax()]
        raise ValueError(f"weights must be finite, and small enough for a float32 score; the largest is {worst}.")
