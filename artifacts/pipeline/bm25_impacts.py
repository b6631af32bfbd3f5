"""BM25 as impacts: the sparse leg of a bundle whose documents were read by a model without a vocabulary head.

    impact_d[t] = round(100 · idf(t) · tf / (tf + k1 (1 - b + b · |d| / avgdl)))
    idf(t) = ln(1 + (N - df_t + 0.5) / (df_t + 0.5))

with the tokenizer's tokens as terms and |d| their number: Lucene's BM25Similarity, but for Lucene's rounding of |d| to
a byte. A query weighs each token by its count, so the sum of impacts is BM25 in hundredths.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.corpus.bounds import MAX_IMPACT
from lightretriever.artifacts.errors import CorpusError

__all__ = ["Bm25Statistics", "bm25_impacts", "count_tokens"]


@dataclass(frozen=True)
class Bm25Statistics:
    """What BM25 knows of a corpus: N documents, avgdl tokens each, df (V,) int64 documents that hold a token."""

    documents: int
    mean_length: float
    frequencies: npt.NDArray[np.int64]

    def idf(self, terms: npt.NDArray[np.integer]) -> npt.NDArray[np.float64]:
        """IDF of token ids (n,), float64, in natural logarithms; above 0 even for a token of every document."""
        frequencies = self.frequencies[terms]
        weights: npt.NDArray[np.float64] = np.log1p((self.documents - frequencies + 0.5) / (frequencies + 0.5))
        return weights


def count_tokens(documents: Iterable[npt.NDArray[np.int32]], vocab_size: int) -> Bm25Statistics:
    """Count a corpus given as the token ids (n,) of each document; V is `vocab_size`.

    Raises CorpusError for a corpus without a single token.
    """
    frequencies = np.zeros(vocab_size, dtype=np.int64)
    count, tokens = 0, 0
    for ids in documents:
        frequencies[np.unique(ids)] += 1
        count += 1
        tokens += len(ids)
    if tokens == 0:
        raise CorpusError(f"The {count} documents have no token.", remedy="Give a corpus with text, or the tokenizer.")
    return Bm25Statistics(count, tokens / count, frequencies)


def bm25_impacts(
    ids: npt.NDArray[np.int32],
    statistics: Bm25Statistics,
    *,
    k1: float = 0.9,
    b: float = 0.4,
    quantization: int = 100,
    top_k: int | None = None,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
    """Terms (n,) int32, ascending, and impacts (n,) uint16 of a document with the token ids `ids`; zeros are left out.

    k1 >= 0 is the saturation of the term frequency, b in [0, 1] the weight of the document's length, `quantization`
    impacts per unit of BM25. Only the `top_k` highest impacts are kept (None: all), of equal ones the lower token id.
    """
    terms, counts = np.unique(ids, return_counts=True)
    saturation = k1 * (1 - b + b * len(ids) / statistics.mean_length)
    weights = statistics.idf(terms) * counts / (counts + saturation)
    impacts = np.minimum(np.round(quantization * weights), MAX_IMPACT).astype(np.uint16)
    kept = np.flatnonzero(impacts > 0)
    if top_k is not None and len(kept) > top_k:
        strongest = np.argsort(-impacts[kept].astype(np.int64), kind="stable")[:top_k]
        kept = np.sort(kept[strongest])
    return terms[kept].astype(np.int32), impacts[kept]
