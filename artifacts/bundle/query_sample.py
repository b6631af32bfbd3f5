"""Query vectors to lay out a dense index by and to measure its recall with: of real queries, or made of documents."""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.dtypes import Float32Array, Int32Array
from lightretriever.artifacts.tokens.table import TokenTable, count_each
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["QuerySample", "query_vectors"]

Bags = Iterable[Int32Array]
_MAX_QUERIES: Final = 512  # queries
_TERMS: Final = 8  # of a document, for a query


class QuerySample:
    """Queries made of the terms of documents from all over a corpus of unknown length: fewer than 512, every s-th."""

    def __init__(self) -> None:
        self._terms: list[list[str]] = []
        self._stride = 1  # a power of two
        self._count = 0

    def add(self, batch: EncodedBatch) -> None:
        """Add the next documents of the corpus. Of those in the sample, the 8 terms of the largest impact are kept."""
        for row in range(len(batch.ids)):
            if self._count % self._stride == 0:
                self._keep(batch, row)
            self._count += 1

    def _keep(self, batch: EncodedBatch, row: int) -> None:
        part = slice(batch.indptr[row], batch.indptr[row + 1])
        best = np.argsort(-batch.impacts[part].astype(np.int64), kind="stable")[:_TERMS]
        terms = batch.terms[part][best].tolist()
        self._terms.append([str(term) if batch.names is None else batch.names[term] for term in terms])
        if len(self._terms) == _MAX_QUERIES:
            self._terms = self._terms[::2]
            self._stride *= 2

    def queries(self, table: TokenTable, tokenizer: TextTokenizer, spelt: Callable[[str], str]) -> Float32Array:
        """The query vectors, float32 (q, D) of length 1; documents without terms or direction give none. `spelt` gives
        a term as text, of which `tokenizer` makes the table's tokens."""
        return query_vectors(table, tokenizer.as_queries(" ".join(map(spelt, terms)) for terms in self._terms))


def query_vectors(table: TokenTable, queries: Bags) -> Float32Array:
    """The vectors of queries, given as token ids (n,), as the service encodes them: float32 (q, D) of length 1.

    A query without tokens, or whose rows add up to zero, gives none. Raises ValueError for an id outside 0..V-1.
    """
    ids = list(queries)
    lengths = np.array([query.size for query in ids], dtype=np.int64)
    bounds, terms, counts = count_each(np.concatenate([np.empty(0, np.int32), *ids]), lengths)
    vectors, norms = table.directions(bounds, terms, counts.astype(np.float32))
    return vectors[norms > 0]
