"""BM25 as impacts: the sparse leg of documents that an encoder without a sparse side read, or a part of a learned one.

    impact_d[t] = max(1, round(100 · idf(t) · tf / (tf + k1 (1 - b + b · |d| / avgdl))))
    idf(t) = ln(1 + (N - df_t + 0.5) / (df_t + 0.5))

with the tokenizer's known tokens as terms and |d| their number: Lucene's BM25Similarity, but for Lucene's rounding of
|d| to a byte. A query weighs each token by its count, so the sum of impacts is BM25 in hundredths. The least impact is
1, so that a token of all documents, whose IDF is almost 0, finds them.

Where the model's learned weights w are added, a query weighs each token by its count times IDF, and

    impact_d[t] = round(100 · (w + a · tf / (tf + k1 (1 - b + b · |d| / avgdl))))

so the sum of impacts is Σ count · IDF · w + a · BM25, in hundredths.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.corpus.bounds import MAX_IMPACT
from lightretriever.artifacts.errors import CorpusError
from lightretriever.artifacts.tokens.idf import TokenStatistics, count_tokens
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["Bm25Encoder", "ImpactRow", "add_impacts", "bm25_impacts", "strongest"]

ImpactRow: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]
"""Terms (n,), ascending, and impacts (n,) of a document."""


def bm25_impacts(
    ids: npt.NDArray[np.int32],
    statistics: TokenStatistics,
    *,
    k1: float = 0.9,
    b: float = 0.4,
    factor: float | None = None,
    quantization: int = 100,
    top_k: int | None = None,
) -> ImpactRow:
    """Terms and impacts of a document with the token ids `ids`; each has at least 1, unless `factor` is 0.

    k1 >= 0 is the saturation of the term frequency, b in [0, 1] the weight of the document's length, `quantization`
    impacts per unit of BM25. With a `factor`, that is a, and the IDF is left to the query. Only the `top_k` highest
    impacts are kept (None: all), of equal ones the lower token id.
    """
    terms, counts = np.unique(ids, return_counts=True)
    saturation = counts / (counts + k1 * (1 - b + b * len(ids) / statistics.mean_length))
    weights = saturation * (statistics.idf(terms) if factor is None else factor)
    return strongest(terms, np.where(weights > 0, np.maximum(np.round(quantization * weights), 1), 0), top_k)


def add_impacts(one: ImpactRow, other: ImpactRow, top_k: int | None = None) -> ImpactRow:
    """The sum of two rows of a document, of which the `top_k` highest impacts are kept (None: all)."""
    terms, places = np.unique(np.concatenate([one[0], other[0]]), return_inverse=True)
    sums = np.zeros(len(terms))
    np.add.at(sums, places, np.concatenate([one[1], other[1]]))
    return strongest(terms, sums, top_k)


def strongest(terms: npt.NDArray[np.integer], impacts: npt.NDArray[np.floating], top_k: int | None = None) -> ImpactRow:
    """Terms (n,), ascending, with whole impacts (n,) as a row: those above 0, of which the `top_k` highest are kept
    (None: all)."""
    whole = np.minimum(impacts, MAX_IMPACT).astype(np.uint16)
    kept = np.flatnonzero(whole > 0)
    if top_k is not None and len(kept) > top_k:
        strongest = np.argsort(-whole[kept].astype(np.int64), kind="stable")[:top_k]
        kept = np.sort(kept[strongest])
    return terms[kept].astype(np.int32), whole[kept]


@dataclass(frozen=True)
class Bm25Encoder:
    """The BM25 of documents over the tokens of `tokenizer`, read as queries are; see `bm25_impacts`."""

    tokenizer: TextTokenizer
    statistics: TokenStatistics
    quantization: int
    top_k: int | None
    factor: float | None

    @classmethod
    def of(
        cls,
        corpus: Iterable[str],
        tokenizer: TextTokenizer,
        quantization: int,
        top_k: int | None,
        factor: float | None = None,
    ) -> Self:
        """Count the known tokens of a corpus' texts. Raises CorpusError for one without a single one."""
        statistics = count_tokens(tokenizer.as_queries(corpus), tokenizer.vocab_size)
        if not statistics.mean_length:
            raise CorpusError(
                f"None of the {statistics.documents} documents has a token that the tokenizer knows.",
                remedy="Name a model whose vocabulary has the corpus' script.",
            )
        return cls(tokenizer, statistics, quantization, top_k, factor)

    def impacts(self, texts: Sequence[str], learned: Sequence[ImpactRow] | None = None) -> list[ImpactRow]:
        """Terms and impacts of each document, those that a model `learned` added."""
        cut = self.top_k if learned is None else None
        rows = [
            bm25_impacts(one, self.statistics, factor=self.factor, quantization=self.quantization, top_k=cut)
            for one in self.tokenizer.as_queries(texts)
        ]
        return rows if learned is None else [add_impacts(*pair, self.top_k) for pair in zip(rows, learned, strict=True)]
