"""Search in an impact index by Lucene's own queries: exact inner products of a weighted query with documents' impacts.

    score(q, d) = float32(sum over the terms t of float32(q[t] * impact[d, t]))

The sum is in double, which is exact (see `weighted_ids`), so every backend gives the same bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from math import inf
from pathlib import Path
from typing import Final, NamedTuple, Self

import numpy as np

from lightretriever.artifacts.documents.bounds import MAX_COUNTED, MAX_IMPACT
from lightretriever.artifacts.documents.fields import Order
from lightretriever.artifacts.dtypes import Float32Array, FloatArray, Int32Array, Int64Array, IntegerArray, UInt8Array
from lightretriever.artifacts.errors import BundleError, JavaError, TooManyValuesError
from lightretriever.artifacts.sparse.jvm import (
    JavaObject,
    java_call,
    java_class,
    pack_floats,
    pack_ints,
    pack_text,
    pack_texts,
    unpack_counts,
    unpack_hits,
    unpack_ints,
    unpack_parts,
    unpack_texts,
)
from lightretriever.artifacts.sparse.vocabulary import Language, word_analyzer

RESTORE: Final = "Restore the directory from a copy, or build the bundle again."
"""The remedy for a damaged index."""

MIN_WORD: Final = 3
"""Letters of a word that is corrected; shorter ones are like too many others."""
_MAX_WORD: Final = 40  # letters; what is near a longer one takes too long to find
_MIN_BEGINNING: Final = 2  # letters of a beginning that is completed

_MAX_SCORE: Final = float(np.finfo(np.float32).max)
_IDS_AT_ONCE: Final = 65_536
_MAX_SECONDS: Final = 1e9  # as good as no limit, and within Java's long as nanoseconds


@dataclass(frozen=True)
class DocumentSet:
    """Some of an index' documents. bits: (b,) uint8, a bit for every ordinal, the lowest first, in whole words of 8
    bytes."""

    handle: JavaObject
    bits: UInt8Array

    @cached_property
    def count(self) -> int:
        """How many there are."""
        return int(np.bitwise_count(self.bits).sum())


class FoundImpacts(NamedTuple):
    """What `ImpactIndex.find` found. terms: (t,), distinct. weights: (t,) float32. ordinals: (m,) int64 and scores:
    (m,) float32 of the hits, best first. documents: (u,) int64, ascending, the hits, the other documents and those
    named. impacts: (u, t) int32 of these documents. named: (n,) int64, the documents that the conditions hold for."""

    terms: Sequence[str]
    weights: Float32Array
    ordinals: Int64Array
    scores: Float32Array
    documents: Int64Array
    impacts: Int32Array
    named: Int64Array


class ImpactIndex:
    """The inverted index of the sparse leg, memory-mapped. A document's ordinal is its place in the order of writing.
    Thread-safe. `close()` may come while another thread searches: that search ends well, every later call raises
    JavaError."""

    alive: DocumentSet | None = None
    """The documents that are not replaced or deleted, which alone are found; None: all."""

    def __init__(self, handle: JavaObject, path: Path) -> None:
        self.path = path
        self.handle = handle
        """Java's OpenIndex, for the calls of this package."""
        self._java = java_class("lightretriever.OpenIndex")
        self._impacts = java_class("lightretriever.ImpactSearch")
        self.count = int(java_call(self._java.count, handle))
        """Number of documents."""

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the index in the directory `path`. Raises BundleError when it is missing, damaged, or not of one
        segment, and JavaError when Java can't start."""
        java = java_class("lightretriever.OpenIndex")
        try:
            handle = java_call(java.open, bytearray(bytes(path.absolute())))
        except (JavaError, ValueError) as error:
            raise BundleError(f"The Lucene index {path} can't be opened ({error}).", remedy=RESTORE) from error
        return cls(handle, path)

    def find(
        self,
        query: tuple[Sequence[str], FloatArray] | str,
        k: int,
        others: Int64Array,
        allowed: DocumentSet | None = None,
        seconds: float = inf,
        language: Language = "english",
        named: Sequence[Sequence[str]] = (),
    ) -> FoundImpacts:
        """The exact best `k` documents, of those `allowed`, that score above 0, by descending score, then by ascending
        ordinal; the documents for which the conditions `named` hold; and the impacts of all these and of `others` (m,),
        in one call into Java.

        The query is terms (t,) of the bundle's vocabulary and their weights (t,), finite and not negative, of which one
        that comes twice weighs the sum, or a text, whose words in a language weigh their counts. Of a condition that
        holds for more than ten documents, none is named. Raises ValueError on bad arguments, and TimeoutError where the
        search takes longer than `seconds`.
        """
        if isinstance(query, str):
            analyzer, names, values = word_analyzer(language), [query], np.empty(0, np.float32)
        else:
            analyzer, (names, values) = None, weighted_query(*query)
        texts = pack_texts("term", [*names, *chain.from_iterable(named)])
        arguments = (texts, pack_floats(values), pack_ints(others), min(k, max(1, self.count)))
        limits = (self._handle_of(allowed), _nanoseconds(seconds))
        packed = java_call(self._impacts.find, self.handle, analyzer, *arguments, *limits)
        words, weights, hits, documents, impacts, named_ordinals = unpack_parts(packed)
        found, ordinals = words.decode().split(" ") if words else [], unpack_ints(documents)
        matrix = np.frombuffer(impacts, "<i4").reshape(ordinals.size, len(found))
        arrays = (np.frombuffer(weights, "<f4"), *unpack_hits(hits), ordinals, matrix, unpack_ints(named_ordinals))
        return FoundImpacts(found, *arrays)

    def scores(self, terms: Sequence[str], weights: FloatArray, ordinals: IntegerArray) -> Float32Array:
        """The scores (m,) float32 of the documents `ordinals` (m,), as `find` gives them; 0.0 where no term matches.
        Raises ValueError on bad arguments."""
        names, values = weighted_query(terms, weights)
        return scores_of(self.impacts(names, ordinals).astype(np.float32) * values)

    def impacts(self, terms: Sequence[str], ordinals: IntegerArray) -> Int32Array:
        """The impact of each term (t,) in each document (m,), (m, t) int32: 0 where the document lacks the term. Raises
        ValueError on bad arguments."""
        order = np.argsort(ordinals, kind="stable")
        arguments = (pack_texts("term", terms), pack_ints(ordinals[order]))
        packed = java_call(self._impacts.impacts, self.handle, *arguments)
        impacts = np.empty((len(ordinals), len(terms)), np.int32)
        impacts[order] = np.frombuffer(packed, dtype="<i4").reshape(impacts.shape)
        return impacts

    def terms(self, ordinal: int) -> tuple[list[str], Int32Array]:
        """All terms (n,) of a document, as in `rows`, and their impacts (n,) int32."""
        (row,) = self.rows(ordinal, ordinal + 1)
        return list(row), np.array(list(row.values()), np.int32)

    def rows(self, first: int, end: int) -> list[dict[str, int]]:
        """The impacts of the documents `first` to `end` - 1 by term, in the order of the terms' UTF-8. Every term of
        the index is asked, which takes milliseconds; so ask for many documents at once."""
        *names, numbers = unpack_parts(java_call(self._impacts.rows, self.handle, first, end))
        spelt = [name.decode() for name in names]
        rows, terms, impacts = np.frombuffer(numbers, dtype="<i4").reshape(-1, 3).T
        order = np.lexsort((terms, rows))
        bounds = np.searchsorted(rows[order], np.arange(end - first + 1)).tolist()
        keys, values = [spelt[term] for term in terms[order].tolist()], impacts[order].tolist()
        return [dict(zip(keys[start:stop], values[start:stop], strict=True)) for start, stop in pairwise(bounds)]

    def where(self, condition: Sequence[str]) -> DocumentSet:
        """The documents that a condition holds for: texts as Java's DocumentFilter reads them."""
        filters = java_class("lightretriever.DocumentFilter")
        handle = java_call(filters.of, self.handle, pack_texts("condition", condition))
        bits = np.frombuffer(java_call(filters.bits, handle), dtype=np.uint8)
        return DocumentSet(handle, bits) if self.alive is None else self.chosen(bits & self.alive.bits)

    def totals(self, chosen: Sequence[DocumentSet | None], allowed: DocumentSet | None = None) -> list[int]:
        """The number of documents in each set, of those `allowed`; None: all documents."""
        sets = [self.alive if documents is None else documents for documents in chosen]
        if allowed is None:
            return [self.count if documents is None else documents.count for documents in sets]
        return [
            allowed.count if part is None else int(np.bitwise_count(part.bits & allowed.bits).sum()) for part in sets
        ]

    def listed(
        self, allowed: DocumentSet | None, order: Order | None, offset: int, count: int, seconds: float = inf
    ) -> Int64Array:
        """The documents (m,) from the one at `offset` on, up to `count`, of those `allowed`, in an order, or in that of
        writing; ties are by ordinal. Raises ValueError for a negative number, and TimeoutError where an order takes
        longer than `seconds`."""
        if offset < 0 or count < 0:
            raise ValueError(f"offset is {offset} and count {count}; both must be 0 or more.")
        allowed = self.alive if allowed is None else allowed
        if order is None:
            if allowed is None:
                return np.arange(min(offset, self.count), min(offset + count, self.count), dtype=np.int64)
            return np.flatnonzero(np.unpackbits(allowed.bits, bitorder="little"))[offset : offset + count]
        arguments = (self._handle_of(allowed), pack_text("field", f"{order.kind[0]}:{order.field}"))
        limits = (order.descending, offset, count, _nanoseconds(seconds))
        page = java_call(java_class("lightretriever.Fields").page, self.handle, *arguments, *limits)
        return unpack_ints(page)

    def chosen(self, bits: UInt8Array) -> DocumentSet:
        """The documents whose bits are set, of bits (b,) as a `DocumentSet` of this index has them."""
        filters = java_class("lightretriever.DocumentFilter")
        return DocumentSet(java_call(filters.ofBits, bytearray(bits.tobytes()), self.count), bits)

    def of(self, ordinals: IntegerArray) -> DocumentSet:
        """The documents (m,) as a set."""
        marked = np.zeros(-(-self.count // 64) * 64, np.bool_)
        marked[ordinals] = True
        return self.chosen(np.packbits(marked, bitorder="little"))

    def counts(self, field: str, allowed: DocumentSet | None) -> list[tuple[str, int]]:
        """The values of a keyword field, each with how many documents have it, of those `allowed`; None: of all
        that there are. Most frequent first, ties by value. Raises TooManyValuesError for more than 10,000 values.
        """
        arguments = (self._handle_of(allowed), pack_text("field", field), MAX_COUNTED)
        counts = java_call(java_class("lightretriever.Fields").counts, self.handle, *arguments)
        if counts is None:
            raise TooManyValuesError(field, MAX_COUNTED)
        return sorted(unpack_counts(counts), key=lambda pair: (-pair[1], pair[0]))

    def spread(self, count: int) -> Int64Array:
        """The ordinals of up to `count` documents from all over the index, ascending."""
        (total,) = self.totals([None])
        places = np.linspace(0, total - 1, min(count, total)).astype(np.int64)
        return places if self.alive is None else self.listed(None, None, 0, total)[places]

    def ids(self) -> list[str]:
        """The ids of all documents, in ordinal order."""
        ids: list[str] = []
        for first in range(0, self.count, _IDS_AT_ONCE):  # all at once would fill Java's heap
            count = min(_IDS_AT_ONCE, self.count - first)
            ids += unpack_texts(java_call(self._java.ids, self.handle, first, count))
        return ids

    def ordinal(self, document_id: str) -> int | None:
        """The ordinal of the document with this id, None if there is no such document."""
        try:
            (ordinal,) = self.ordinals([document_id]).tolist()
        except ValueError:
            return None  # an id that is no Unicode text can't have been indexed
        if ordinal < 0 or (self.alive is not None and not self.alive.bits[ordinal >> 3] >> (ordinal & 7) & 1):
            return None
        return int(ordinal)

    def ordinals(self, ids: Sequence[str]) -> Int32Array:
        """The ordinals of the last documents with these ids, (n,) int32, -1 where there is no such document. Raises
        ValueError for an id that is no Unicode text."""
        return np.frombuffer(java_call(self._java.ordinals, self.handle, pack_texts("document id", ids)), "<i4")

    def documents(self, ordinals: IntegerArray) -> list[bytes]:
        """The stored JSON of the documents `ordinals` (m,), byte for byte as added. ValueError on a bad ordinal."""
        rest = np.argsort(ordinals, kind="stable")  # Lucene reads in ascending order
        texts = [b""] * len(ordinals)
        while len(rest):
            packed = pack_ints(np.asarray(ordinals)[rest])
            read = unpack_parts(java_call(self._java.documents, self.handle, packed))
            for row, text in zip(rest.tolist(), read, strict=False):
                texts[row] = text
            rest = rest[len(read) :]
        return texts

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

    def _handle_of(self, allowed: DocumentSet | None) -> JavaObject:
        """Java's DocumentFilter of some documents; None where all are found."""
        allowed = self.alive if allowed is None else allowed
        return None if allowed is None else allowed.handle


def _nanoseconds(seconds: float) -> int:
    return round(min(max(seconds, 0.0), _MAX_SECONDS) * 1e9)


class Spelling:
    """The words of an open index as its documents spell them, in lower case: corrections of others, and completions.
    Lucene's fuzzy and sorted terms find them. Any number of threads may use it at once."""

    def __init__(self, index: ImpactIndex, language: Language = "english") -> None:
        """`language` is that of the vocabulary's words."""
        self._index = index
        self._analyzer = word_analyzer(language)
        self._java = java_class("lightretriever.Spellings")

    def corrections(self, words: Sequence[str]) -> list[str]:
        """For each word, in lower case, the word of the corpus that is most like it, by the rules of Java's Spellings;
        "" where the corpus has the word in any form, and where no word is near. Raises ValueError for a word that is no
        Unicode."""
        asked = (word if MIN_WORD <= len(word) <= _MAX_WORD else "" for word in words)
        packed = pack_texts("word", asked)
        return unpack_texts(java_call(self._java.corrections, self._index.handle, self._analyzer, packed))

    def forms(self, words: Sequence[str]) -> list[list[str]]:
        """For each word, in lower case, the words of the corpus that have the same term."""
        packed = pack_texts("word", words)
        forms = java_call(self._java.forms, self._index.handle, self._analyzer, packed)
        return [text.split() for text in unpack_texts(forms)]

    def completions(self, beginning: str, most: int) -> list[tuple[str, int]]:
        """The words that begin with a text in lower case, of at least two letters, the text itself included if it is a
        word, each with the number of documents that have it: the most frequent `most`, ties by word."""
        if len(beginning) < _MIN_BEGINNING:
            return []
        packed = pack_text("beginning", beginning)
        return unpack_counts(java_call(self._java.completions, self._index.handle, packed, most))


def weighted_query(terms: Sequence[str], weights: FloatArray) -> tuple[list[str], Float32Array]:
    """The different terms (u,) of a query (t,), and the sums (u,) float32 of their weights, none 0, as
    `weighted_ids`."""
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(term, len(numbers)) for term in terms], np.int32)
    kept, sums = weighted_ids(ids, weights)
    names = list(numbers)
    return [names[number] for number in kept.tolist()], sums


def weighted_ids(terms: IntegerArray, weights: FloatArray) -> tuple[Int32Array, Float32Array]:
    """The different terms (u,) int32 of a query (t,), ascending, and the sums (u,) float32 of their weights, none 0.

    Weights are cut to multiples of a power of two, so that sums in double of the products of weight and impact are
    exact in any order: u products of a weight below 2^e with an impact below 2^16 add up to less than 2^(e + 16 + b),
    where u <= 2^b, and a double has 53 bits. A weight of at least 2^(b - 13) of the largest one keeps all of its bits.
    Raises ValueError for weights that are no floats, negative, not finite, or too large for a float32 score.
    """
    if weights.shape != terms.shape or weights.dtype.kind != "f":
        raise ValueError(
            f"weights must be floats of the terms' shape {terms.shape}; got {weights.dtype} of shape {weights.shape}."
        )
    total = weights.sum(dtype=np.float64)
    if not (weights.min(initial=0.0) >= 0 and total * MAX_IMPACT < _MAX_SCORE):  # a not-a-number fails this, too
        message = "weights must be finite, not negative, and small enough for a float32 score"
        raise ValueError(f"{message}; they are from {weights.min()} to {weights.max()}.")
    ids, places = np.unique(terms, return_inverse=True)
    sums = np.bincount(places, weights, len(ids)).astype(np.float32).astype(np.float64)
    exponent = math.frexp(float(sums.max(initial=0.0)))[1]
    bits = max(0, int(np.count_nonzero(sums)) - 1).bit_length()
    unit = math.ldexp(1.0, exponent + 16 + bits - 53)
    cut = (np.trunc(sums / unit) * unit).astype(np.float32)
    kept = cut != 0
    return ids[kept].astype(np.int32), cut[kept]


def scores_of(shares: Float32Array) -> Float32Array:
    """The scores (m,) float32 of documents by the products (m, t) float32 of weight and impact of a query's terms: the
    bits that `ImpactIndex.scores` gives, if the weights are those of `weighted_ids`."""
    scores: Float32Array = shares.sum(axis=1, dtype=np.float64).astype(np.float32)
    return scores
