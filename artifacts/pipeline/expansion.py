"""Document expansion by the token table: the sparse leg's words are weighed, and added, by what the dense leg knows.

The row of a word is the sum of its tokens' table rows, averaged over the forms in which the corpus spells it, so R_w ·
v_d is what the word would add to the dense score of a document. Less its mean over the corpus, it tells the document
from others:

    R_w = Σ_f n_f Σ_{t ∈ f} E_t / Σ_f n_f           over the forms f of w, which the corpus has n_f times
    z_d(w) = R_w · (v_d − mean over the corpus of v)
    impact_d[w] = round(BM25 impact + λ · u · z_d(w))   for the document's own words, at least 1,
                                                        and for the k other words of highest z_d > 0

λ is the section's `weight`, k its `terms`. u puts z in units of impacts: the mean BM25 impact of the documents' own
words over the root mean square of their z, both over a sample of the corpus. Nothing is trained, and no document is
read again. A word that is left out counts as an average one, z = 0.

Words of at least two documents are added, at most the 50,000 most frequent ones.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import faiss
import numpy as np

from lightretriever.artifacts.bundle.manifest import ExpansionInfo
from lightretriever.artifacts.dtypes import Float32Array, Int32Array, Int64Array
from lightretriever.artifacts.pipeline.bm25_impacts import Bm25Encoder
from lightretriever.artifacts.pipeline.rows import ImpactRow, ImpactRows
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

FORM: Final = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)?")
_MAX_FORMS: Final = 2_000_000  # of a corpus; rarer ones are let go when there are more
_MIN_DOCUMENTS: Final = 2
_MAX_CANDIDATES: Final = 50_000
_AT_ONCE: Final = 1024  # documents
_MAX_EXPANDED: Final = 511  # largest impact: what a cluster keeps exactly in one feature


def word_rows(texts: Iterable[str], bm25: Bm25Encoder, tokenizer: TextTokenizer, table: Float32Array) -> Float32Array:
    """R, (W, D) float32: a row for each of the W words that `bm25` counted, zero for one that no form gives; `table` is
    E (V, D), its tokens are those of `tokenizer`."""
    forms = Counter[str]()
    for text in texts:
        forms.update(FORM.findall(text.lower()))
        if len(forms) > _MAX_FORMS:
            forms = Counter(dict(forms.most_common(_MAX_FORMS // 2)))
    size = len(bm25.frequencies)
    rows, counts = np.zeros((size, table.shape[1]), np.float32), np.zeros(size)
    spelt = list(forms)
    for start in range(0, len(spelt), _AT_ONCE):
        part = spelt[start : start + _AT_ONCE]
        bags = list(tokenizer.as_queries(part))
        for form, words, ids in zip(part, bm25.vocabulary.terms_of(part), bags, strict=True):
            number = bm25.numbers.get(words[0]) if len(words) == 1 else None
            if number is not None and number < size and len(ids):
                rows[number] += forms[form] * table[ids].sum(axis=0)
                counts[number] += forms[form]
    for start in range(0, size, _AT_ONCE):  # a row that no form gives takes no memory while it is not written
        numbers = start + np.flatnonzero(counts[start : start + _AT_ONCE])
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

    @property
    def dimension(self) -> int:
        """D."""
        size: int = self.rows.shape[1]
        return size

    @cached_property
    def _index(self) -> faiss.IndexFlatIP:
        index = faiss.IndexFlatIP(self.dimension)
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
