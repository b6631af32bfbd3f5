"""BM25 as impacts of the sparse leg: over the words of documents, or over the tokens of a model without a sparse side.

    impact_d[t] = max(1, round(s · idf(t) · tf / (tf + k1 (1 - b + b · |d| / avgdl))))
    idf(t) = ln(1 + (N - df_t + 0.5) / (df_t + 0.5))

with |d| the number of terms of a document, rounded as Lucene rounds it to a byte, and N and avgdl over the documents
that have a term: Lucene's BM25Similarity. A query weighs each term by its count, so the sum of impacts is s times
BM25. The least impact is 1, so that a term of all documents, whose IDF is almost 0, finds them. s is `quantization`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.corpus.bounds import MAX_IMPACT
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.sparse.vocabulary import Vocabulary

__all__ = ["Bm25Encoder", "ImpactRow", "TermNumbers", "lucene_lengths", "strongest"]

ImpactRow: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]
"""Terms (n,), ascending, and impacts (n,) of a document."""

_EXACT: Final = 24
"""Lengths below are exact in Lucene's byte, larger ones have four significant bits above it."""

_BATCH: Final = 1024


class TermNumbers:
    """Terms by number, in the order in which they came."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names: list[str] = list(names)
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def of(self, terms: Iterable[str]) -> npt.NDArray[np.int32]:
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


def lucene_lengths(lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Lengths (n,) as Lucene's norms keep them, in a byte: SmallFloat.byte4ToInt(intToByte4(length))."""
    above = np.maximum(lengths - _EXACT, 0)
    shift = np.maximum(np.frexp(above)[1].astype(np.int64) - 4, 0)
    rounded: npt.NDArray[np.int64] = np.where(lengths < _EXACT, lengths, _EXACT + (above >> shift << shift))
    return rounded


def strongest(terms: npt.NDArray[np.integer], impacts: npt.NDArray[np.floating], top_k: int | None = None) -> ImpactRow:
    """Terms (n,), ascending, with whole impacts (n,) as a row: those above 0, of which the `top_k` highest are kept
    (None: all), of equal ones the lower term."""
    whole = np.clip(impacts, 0, MAX_IMPACT).astype(np.uint16)
    kept = np.flatnonzero(whole > 0)
    if top_k is not None and len(kept) > top_k:
        strongest = np.argsort(-whole[kept].astype(np.int64), kind="stable")[:top_k]
        kept = np.sort(kept[strongest])
    return terms[kept].astype(np.int32), whole[kept]


@dataclass(frozen=True)
class Bm25Encoder:
    """The BM25 of documents over the terms of `vocabulary`. `numbers` names the terms; of the `documents` that have a
    term, with `mean_length` terms each, `frequencies` (T,) int64 counts those that have each of the first T terms. k1
    >= 0 is the saturation of the term frequency, b in [0, 1] the weight of the document's length."""

    vocabulary: Vocabulary
    numbers: TermNumbers
    documents: int
    mean_length: float
    frequencies: npt.NDArray[np.int64]
    quantization: int
    k1: float
    b: float

    @classmethod
    def of(cls, corpus: Iterable[str], vocabulary: Vocabulary, *, quantization: int, k1: float, b: float) -> Self:
        """Count the terms of a corpus' texts. Raises CorpusError where there are none."""
        numbers, counts = TermNumbers(), Counter[int]()
        documents = length = 0
        for terms in _terms(corpus, vocabulary):
            documents += bool(terms)
            length += len(terms)
            counts.update(np.unique(numbers.of(terms)).tolist())
        if not length:
            raise CorpusError(
                "No document has a term of the vocabulary.",
                remedy="Name a model or a language whose vocabulary has the corpus' script.",
            )
        frequencies = np.array([counts[number] for number in range(len(numbers.names))], np.int64)
        return cls(vocabulary, numbers, documents, length / documents, frequencies, quantization, k1, b)

    def counted(self) -> dict[str, Any]:
        """What was counted, as JSON, for `again`."""
        size = len(self.frequencies)
        about: dict[str, Any] = {
            "documents": self.documents,
            "mean_length": self.mean_length,
            "quantization": self.quantization,
        }
        about |= {"k1": self.k1, "b": self.b, "terms": self.numbers.names[:size]}
        return about | {"frequencies": self.frequencies.tolist()}

    @classmethod
    def again(cls, counted: dict[str, Any], vocabulary: Vocabulary) -> Self:
        """The encoder whose counts these are."""
        settings = {name: counted[name] for name in ("documents", "mean_length", "quantization", "k1", "b")}
        frequencies = np.array(counted["frequencies"], np.int64)
        return cls(vocabulary, TermNumbers(counted["terms"]), frequencies=frequencies, **settings)

    def idf(self, terms: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
        """The IDF (n,) of terms by number; one that came after the count is in no document."""
        known = np.minimum(terms, len(self.frequencies) - 1)
        counts = np.where(terms < len(self.frequencies), self.frequencies[known], 0)
        weights: npt.NDArray[np.float64] = np.log1p((self.documents - counts + 0.5) / (counts + 0.5))
        return weights

    def impacts(self, texts: Sequence[str]) -> list[ImpactRow]:
        """Terms and impacts of each document; each has at least 1."""
        return [self._row(self.numbers.of(terms)) for terms in self.vocabulary.terms_of(texts)]

    def _row(self, found: npt.NDArray[np.int32]) -> ImpactRow:
        terms, counts = np.unique(found, return_counts=True)
        length = lucene_lengths(np.array([len(found)]))[0]
        saturated = counts / (counts + self.k1 * (1 - self.b + self.b * length / self.mean_length))
        return strongest(terms, np.maximum(np.round(self.quantization * saturated * self.idf(terms)), 1))


def _terms(corpus: Iterable[str], vocabulary: Vocabulary) -> Iterator[list[str]]:
    texts = iter(corpus)
    while batch := list(islice(texts, _BATCH)):
        yield from vocabulary.terms_of(batch)
