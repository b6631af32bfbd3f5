"""Queries by which a bundle's dense leg is measured: real ones, or made of documents, lay it out and give its recall;
unrelated ones set the thresholds of a match.

An unrelated query is a few words of the vocabulary of the tokenizer, drawn at random, so the score of its best document
means nothing. A document is a weak match from the score that one unrelated query in 20 reaches, and a strong match from
the one that one in 200 reaches.
"""

import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.bundle.manifest import MatchThresholds
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.dtypes import Float32Array, Int32Array
from lightretriever.artifacts.tokens.table import TokenTable, count_each
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

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
            self._count += 1
            if (self._count - 1) % self._stride:
                continue
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

    A query without tokens, or whose rows add up to zero, gives none.
    """
    ids = list(queries)
    lengths = np.array([query.size for query in ids], dtype=np.int64)
    bounds, terms, counts = count_each(np.concatenate([np.empty(0, np.int32), *ids]), lengths)
    vectors, norms = table.directions(bounds, terms, counts.astype(np.float32))
    return vectors[norms > 0]


_QUERIES: Final = 1000
_LENGTHS: Final = (2, 4, 6, 8)  # words
_MIN_WORDS: Final = 1000  # a smaller vocabulary was made of the corpus, whose words it would repeat
_WEAK: Final = 0.95
_STRONG: Final = 0.995

# Whole words of at least three letters. Where a tokenizer has a sign for the space before a word, they begin with it.
_SPACED: Final = re.compile(r"[Ġ▁][^\W\d_]{3,}")
_PLAIN: Final = re.compile(r"[^\W\d_]{3,}")


def match_thresholds(index: DenseIndex, table: TokenTable, tokenizer: TextTokenizer) -> MatchThresholds | None:
    """The thresholds of a task with this table; None if its tokenizer has too few words."""
    vectors = query_vectors(table, unrelated_queries(tokenizer))
    if not len(vectors):
        return None
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        best = np.concatenate(list(threads.map(lambda query: index.search(query, 1)[1], vectors)))  # may find nothing
    if not best.size:
        return None
    weak, strong = np.quantile(best, [_WEAK, _STRONG]).round(4).tolist()
    return MatchThresholds(weak=weak, strong=strong, queries=best.size)


def unrelated_queries(tokenizer: TextTokenizer) -> list[Int32Array]:
    """1,000 queries of 2, 4, 6 and 8 random words, as token ids (n,); none if the tokenizer has fewer than 1,000 words.

    The same tokenizer gives the same queries.
    """
    spelt = [tokenizer.token(token) for token in range(tokenizer.vocab_size)]
    for pattern in (_SPACED, _PLAIN):
        words = np.array([token for token, text in enumerate(spelt) if pattern.fullmatch(text)], np.int32)
        if len(words) >= _MIN_WORDS:
            random = np.random.default_rng(0)
            return [random.choice(words, _LENGTHS[number % len(_LENGTHS)]) for number in range(_QUERIES)]
    return []
