"""Impacts of documents: BM25, and what the token table adds to the words of the sparse leg.

BM25 is over the words of documents, or over the tokens of a model without a sparse side:

    impact_d[t] = max(1, round(s · idf(t) · tf / (tf + k1 (1 - b + b · |d| / avgdl))))
    idf(t) = ln(1 + (N - df_t + 0.5) / (df_t + 0.5))

with |d| the number of terms of a document, rounded as Lucene rounds it to a byte, and N and avgdl over the documents
that have a term: Lucene's BM25Similarity. A query weighs each term by its count, so the sum of impacts is s times
BM25. The least impact is 1, so that a term of all documents, whose IDF is almost 0, finds them. s is `quantization`.

The row of a word is the sum of its tokens' table rows, averaged over the forms in which the corpus spells it, so
R_w · v_d is what the word would add to the dense score of a document. Less its mean over the corpus, it tells the
document from others, and expands it:

    R_w = Σ_f n_f Σ_{t ∈ f} E_t / Σ_f n_f           over the forms f of w, which the corpus has n_f times
    z_d(w) = R_w · (v_d − mean over the corpus of v)
    impact_d[w] = round(BM25 impact + λ · u · z_d(w))   for the document's own words, at least 1,
                                                        and for the k other words of highest z_d > 0

λ is the section's `weight`, k its `terms`. u puts z in units of impacts: the mean BM25 impact of the documents' own
words over the root mean square of their z, both over a sample of the corpus. A word that is left out counts as an
average one, z = 0. Words of at least two documents are added, at most the 50,000 most frequent ones.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import faiss
import numpy as np

from lightretriever.artifacts.bundle.manifest import ExpansionInfo
from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.dtypes import Float32Array, Float64Array, Int32Array, Int64Array
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.pipeline.rows import ImpactRow, ImpactRows, Rows, TermCounts
from lightretriever.artifacts.sparse.vocabulary import Vocabulary
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

_EXACT: Final = 24
"""Lengths below are exact in Lucene's byte, larger ones have four significant bits above it."""

_DOCUMENTS: Final = 65_536  # whose terms are counted at a time
_COUNTED: Final = ("documents", "mean_length", "quantization", "k1", "b")
"""Fields of an encoder that are kept beside its terms and their frequencies."""

_FORM: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)?")
_MAX_FORMS: Final = 2_000_000  # of a corpus; rarer ones are let go when there are more
_FORMS: Final = 1024  # that are tokenised at a time
_MIN_DOCUMENTS: Final = 2
_MAX_CANDIDATES: Final = 50_000
_MAX_EXPANDED: Final = 511  # largest impact: what a cluster keeps exactly in one feature


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
    numbers: dict[str, int]
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
        for start in range(0, len(counts), _DOCUMENTS):
            indptr, terms, term_counts = counts.sorted(start, min(start + _DOCUMENTS, len(counts)))
            frequencies += np.bincount(terms, minlength=len(frequencies))
            documents += int(np.count_nonzero(np.diff(indptr)))
            length += int(term_counts.sum())
        if not length:
            raise CorpusError(
                "No document has a term of the vocabulary.",
                remedy="Name a model or a language whose vocabulary has the corpus' script.",
            )
        numbers = {term: number for number, term in enumerate(counts.names)}
        return cls(vocabulary, numbers, documents, length / documents, frequencies, quantization, k1, b)

    def counted(self) -> dict[str, Any]:
        """What was counted, as JSON, for `again`."""
        settings = {name: getattr(self, name) for name in _COUNTED}
        terms = [*self.numbers][: len(self.frequencies)]
        return settings | {"terms": terms, "frequencies": self.frequencies.tolist()}

    @classmethod
    def again(cls, counted: dict[str, Any], vocabulary: Vocabulary) -> Self:
        """The encoder whose counts these are."""
        settings = {name: counted[name] for name in _COUNTED}
        numbers = {term: number for number, term in enumerate(counted["terms"])}
        return cls(vocabulary, numbers, frequencies=np.array(counted["frequencies"], np.int64), **settings)

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
        lengths = np.repeat(np.diff(counts.terms.at[start : stop + 1]), np.diff(indptr))
        saturation = self.k1 * (1 - self.b + self.b * lucene_lengths(lengths) / self.mean_length)
        weights = self.quantization * (term_counts / (term_counts + saturation)) * self.idf(terms)
        return ImpactRows(Rows(indptr, terms), np.clip(np.round(weights), 1, MAX_IMPACT).astype(np.uint16))


def word_rows(texts: Iterable[str], bm25: Bm25Encoder, tokenizer: TextTokenizer, table: Float32Array) -> Float32Array:
    """R, (W, D) float32: a row for each of the W words that `bm25` counted, zero for one that no form gives; `table` is
    E (V, D), its tokens are those of `tokenizer`."""
    forms = Counter[str]()
    for text in texts:
        forms.update(_FORM.findall(text.lower()))
        if len(forms) > _MAX_FORMS:
            forms = Counter(dict(forms.most_common(_MAX_FORMS // 2)))
    size = len(bm25.frequencies)
    rows, counts = np.zeros((size, table.shape[1]), np.float32), np.zeros(size)
    spelt = list(forms)
    for start in range(0, len(spelt), _FORMS):
        part = spelt[start : start + _FORMS]
        bags = list(tokenizer.as_queries(part))
        for form, words, ids in zip(part, bm25.vocabulary.terms_of(part), bags, strict=True):
            number = bm25.numbers.get(words[0]) if len(words) == 1 else None
            if number is not None and number < size and len(ids):
                rows[number] += forms[form] * table[ids].sum(axis=0)
                counts[number] += forms[form]
    for start in range(0, size, _FORMS):  # a row that no form gives takes no memory while it is not written
        numbers = start + np.flatnonzero(counts[start : start + _FORMS])
        rows[numbers] /= counts[numbers, None].astype(np.float32)
    return rows


@dataclass(frozen=True)
class Expansion:
    """Expands documents by the `rows` of words (W, D) float32, which the corpus has with the `frequencies` (W,). `mean`
    (D,) float32 is the mean of the corpus' vectors, `unit` is u, in impacts."""

    settings: ExpansionInfo
    rows: Float32Array
    frequencies: Int64Array
    mean: Float32Array
    unit: float

    @classmethod
    def of(
        cls,
        settings: ExpansionInfo,
        rows: Float32Array,
        bm25: Bm25Encoder,
        mean: Float32Array,
        vectors: Float32Array,
        sparse: ImpactRows,
    ) -> Self:
        """Measure u on a sample of the documents: their vectors (m, D) float32 of length 1, and BM25 impacts."""
        z = [rows[terms] @ (vector - mean) for vector, (terms, _) in zip(vectors, sparse, strict=True)]
        impacts = sparse.impacts
        spread = float(np.sqrt(np.mean(np.concatenate(z).astype(np.float64) ** 2))) if len(impacts) else 0.0
        return cls(settings, rows, bm25.frequencies, mean, float(impacts.mean()) / spread if spread else 0.0)

    @cached_property
    def candidates(self) -> Int32Array:
        """The words (c,) that may be added."""
        possible = np.flatnonzero((self.frequencies >= _MIN_DOCUMENTS) & self.rows.any(axis=1))
        frequent = np.argsort(-self.frequencies[possible], kind="stable")[:_MAX_CANDIDATES]
        return np.sort(possible[frequent]).astype(np.int32)

    @cached_property
    def _index(self) -> faiss.IndexFlatIP:
        index = faiss.IndexFlatIP(self.rows.shape[1])
        index.add(self.rows[self.candidates])
        return index

    def impacts(self, dense: Float32Array, sparse: ImpactRows) -> ImpactRows:
        """Expand n documents with vectors (n, D) float32 of length 1 and BM25 impacts."""
        moved = np.ascontiguousarray(dense - self.mean)
        count = min(2 * self.settings.terms, self.candidates.size)  # more than are added: own words are among them
        z, places = np.empty((len(dense), 0), np.float32), np.empty((len(dense), 0), np.int64)
        if count:
            z, places = self._index.search(moved, count)
        rows = zip(moved, self.candidates[places], z, sparse, strict=True)
        return ImpactRows.of([self._row(*row) for row in rows])

    def _row(self, moved: Float32Array, words: Int32Array, z: Float32Array, sparse: ImpactRow) -> ImpactRow:
        """Expand one document, with the `words` of highest `z`, highest first."""
        numbers, impacts = sparse
        has_row = numbers < len(self.rows)
        own_z = np.zeros(len(numbers))
        own_z[has_row] = self.rows[numbers[has_row]] @ moved
        others = np.append(numbers, -1)[np.searchsorted(numbers, words)] != words
        added = np.flatnonzero(others & (z > 0))[: self.settings.terms]
        factor = self.settings.weight * self.unit
        terms = np.concatenate([numbers, words[added]])
        sums = np.concatenate([np.maximum(impacts + factor * own_z, 1), factor * z[added]])
        whole = np.round(np.minimum(sums, _MAX_EXPANDED)).astype(np.uint16)
        order = np.argsort(terms, kind="stable")
        order = order[whole[order] > 0]
        return terms[order], whole[order]
