"""BM25 as impacts of the sparse leg: over the words of documents, or over the tokens of a model without a sparse side.

    impact_d[t] = max(1, round(s · idf(t) · tf / (tf + k1 (1 - b + b · |d| / avgdl))))
    idf(t) = ln(1 + (N - df_t + 0.5) / (df_t + 0.5))

with |d| the number of terms of a document, rounded as Lucene rounds it to a byte, and N and avgdl over the documents
that have a term: Lucene's BM25Similarity. A query weighs each term by its count, so the sum of impacts is s times
BM25. The least impact is 1, so that a term of all documents, whose IDF is almost 0, finds them. s is `quantization`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.dtypes import Float64Array, Int32Array, Int64Array, IntegerArray
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.pipeline.rows import ImpactRows, Rows, TermCounts, TermNumbers
from lightretriever.artifacts.sparse.vocabulary import Vocabulary

_EXACT: Final = 24
"""Lengths below are exact in Lucene's byte, larger ones have four significant bits above it."""

_AT_ONCE: Final = 65_536  # documents
_COUNTED: Final = ("documents", "mean_length", "quantization", "k1", "b")
"""Fields of an encoder that are kept beside its terms and their frequencies."""


def lucene_lengths(lengths: Int64Array) -> Int64Array:
    """Lengths (n,) as Lucene's norms keep them, in a byte: SmallFloat.byte4ToInt(intToByte4(length))."""
    above = np.maximum(lengths - _EXACT, 0)
    shift = np.maximum(np.frexp(above)[1].astype(np.int64) - 4, 0)
    rounded: Int64Array = np.where(lengths < _EXACT, lengths, _EXACT + (above >> shift << shift))
    return rounded


@dataclass(frozen=True)
class Bm25Encoder:
    """The BM25 of documents over the terms of `vocabulary`. `numbers` names the terms; of the `documents` that have a
    term, with `mean_length` terms each, `frequencies` (T,) int64 counts those that have each of the first T terms. k1
    >= 0 is the saturation of the term frequency, b in [0, 1] the weight of the document's length."""

    vocabulary: Vocabulary
    numbers: TermNumbers
    documents: int
    mean_length: float
    frequencies: Int64Array
    quantization: int
    k1: float
    b: float

    @classmethod
    def of(cls, counts: TermCounts, vocabulary: Vocabulary, *, quantization: int, k1: float, b: float) -> Self:
        """The encoder of a corpus whose terms were counted. Raises CorpusError where there are none."""
        frequencies, documents, length = np.zeros(len(counts.names), np.int64), 0, 0
        for start in range(0, len(counts), _AT_ONCE):
            indptr, terms, term_counts = counts.sorted(start, min(start + _AT_ONCE, len(counts)))
            frequencies += np.bincount(terms, minlength=len(frequencies))
            documents += int(np.count_nonzero(np.diff(indptr)))
            length += int(term_counts.sum())
        if not length:
            raise CorpusError(
                "No document has a term of the vocabulary.",
                remedy="Name a model or a language whose vocabulary has the corpus' script.",
            )
        return cls(
            vocabulary, TermNumbers.of(counts.names), documents, length / documents, frequencies, quantization, k1, b
        )

    def counted(self) -> dict[str, Any]:
        """What was counted, as JSON, for `again`."""
        settings = {name: getattr(self, name) for name in _COUNTED}
        terms = [*self.numbers][: len(self.frequencies)]
        return settings | {"terms": terms, "frequencies": self.frequencies.tolist()}

    @classmethod
    def again(cls, counted: dict[str, Any], vocabulary: Vocabulary) -> Self:
        """The encoder whose counts these are."""
        settings = {name: counted[name] for name in _COUNTED}
        frequencies = np.array(counted["frequencies"], np.int64)
        return cls(vocabulary, TermNumbers.of(counted["terms"]), frequencies=frequencies, **settings)

    def idf(self, terms: Int32Array) -> Float64Array:
        """The IDF (n,) of terms by number; one that came after the count is in no document."""
        counted = np.minimum(terms, len(self.frequencies) - 1)
        counts = np.where(terms < len(self.frequencies), self.frequencies[counted], 0)
        weights: Float64Array = np.log1p((self.documents - counts + 0.5) / (counts + 0.5))
        return weights

    def impacts(self, texts: Sequence[str]) -> ImpactRows:
        """Terms and impacts of each document; each has at least 1."""
        return self.rows(TermCounts.of(self.vocabulary.terms_of(texts), self.numbers), 0, len(texts))

    def rows(self, counts: TermCounts, start: int, stop: int) -> ImpactRows:
        """Terms and impacts of the documents from `start` on up to `stop`."""
        indptr, terms, term_counts = counts.sorted(start, stop)
        lengths = np.diff(counts.terms.at[start : stop + 1])
        weights = self.weights(terms, term_counts, np.repeat(lengths, np.diff(indptr)))
        impacts = np.clip(np.round(weights), 1, MAX_IMPACT).astype(np.uint16)
        return ImpactRows(Rows(indptr, terms), impacts)

    def weights(self, terms: Int32Array, counts: IntegerArray, lengths: Int64Array) -> Float64Array:
        """BM25 (n,) of terms that have such `counts` in documents of such `lengths`, times `quantization`."""
        saturation = self.k1 * (1 - self.b + self.b * lucene_lengths(lengths) / self.mean_length)
        weights: Float64Array = self.quantization * (counts / (counts + saturation)) * self.idf(terms)
        return weights
