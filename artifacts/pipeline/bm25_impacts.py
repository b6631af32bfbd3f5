"""BM25 as impacts: the sparse leg of a bundle whose documents were read by an encoder without a sparse side.

    impact_d[t] = round(100 · idf(t) · tf / (tf + k1 (1 - b + b · |d| / avgdl)))
    idf(t) = ln(1 + (N - df_t + 0.5) / (df_t + 0.5))

with the tokenizer's known tokens as terms and |d| their number: Lucene's BM25Similarity, but for Lucene's rounding of
|d| to a byte. A query weighs each token by its count, so the sum of impacts is BM25 in hundredths.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.corpus.bounds import MAX_IMPACT
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.tokens.idf import TokenStatistics, count_tokens
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["Bm25Encoder", "bm25_impacts"]


def bm25_impacts(
    ids: npt.NDArray[np.int32],
    statistics: TokenStatistics,
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


@dataclass(frozen=True)
class Bm25Encoder:
    """The sparse side of documents by BM25 over the tokens of `tokenizer`; see `bm25_impacts`."""

    tokenizer: TextTokenizer
    statistics: TokenStatistics
    quantization: int
    top_k: int | None

    @classmethod
    def of(cls, corpus: Iterable[str], tokenizer: TextTokenizer, quantization: int, top_k: int | None) -> Self:
        """Count the known tokens of a corpus' texts. Raises CorpusError for one without a single one."""
        statistics = count_tokens(map(tokenizer.known, tokenizer.encode_all(corpus)), tokenizer.vocab_size)
        if not statistics.mean_length:
            raise CorpusError(
                f"The {statistics.documents} documents have no token.",
                remedy="Give a corpus with text, or the tokenizer.",
            )
        return cls(tokenizer, statistics, quantization, top_k)

    def impacts(self, texts: Sequence[str]) -> list[tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]]:
        """Terms and impacts of each document."""
        return [
            bm25_impacts(ids, self.statistics, quantization=self.quantization, top_k=self.top_k)
            for ids in map(self.tokenizer.known, self.tokenizer.encode_batch(texts))
        ]
