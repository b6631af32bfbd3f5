"""When a document matches a query well: thresholds of the dense score, set by queries that are unrelated to any corpus.

An unrelated query is a few words of the vocabulary of the tokenizer, drawn at random, so the score of its best document
means nothing. A document is a weak match from the score that one unrelated query in 20 reaches, and a strong match from
the one that one in 200 reaches.
"""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from lightretriever.artifacts.bundle.manifest import MatchThresholds
from lightretriever.artifacts.bundle.query_sample import query_vectors
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.dtypes import Int32Array
from lightretriever.artifacts.tokens.table import TokenTable
from lightretriever.artifacts.tokens.tokenizer import TextTokenizer

__all__ = ["match_thresholds", "unrelated_queries"]

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
    words = next(
        (found for pattern in (_SPACED, _PLAIN) if len(found := _matching(pattern, spelt)) >= _MIN_WORDS), None
    )
    if words is None:
        return []
    random = np.random.default_rng(0)
    return [random.choice(words, _LENGTHS[number % len(_LENGTHS)]) for number in range(_QUERIES)]


def _matching(pattern: re.Pattern[str], spelt: list[str]) -> Int32Array:
    return np.array([token for token, text in enumerate(spelt) if pattern.fullmatch(text)], np.int32)
