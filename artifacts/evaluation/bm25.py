"""BM25 on words, as Anserini computes it by Lucene's own similarity: a system to compare with, over an index of its
own."""

from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.java_bytes import pack_floats, pack_texts, unpack_hits
from lightretriever.artifacts.sparse.jvm import JavaObject, java_call
from lightretriever.artifacts.sparse.vocabulary import words_of
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter

BM25_K1: Final = 0.9
"""Saturation of the term frequency, Anserini's default."""

BM25_B: Final = 0.4
"""Weight of the document's length, Anserini's default."""

_BATCH: Final = 1000


def build_word_index(path: Path, ids: Iterable[str], texts: Iterable[str]) -> int:
    """Index `texts`, named by as many different `ids`, in the directory `path`, which must not exist or be empty.

    The words are those of English. Returns the number of documents. Raises ValueError on bad input, and BundleError
    when `path` is not empty; either way nothing is left behind.
    """
    with ImpactIndexWriter(path, language="english") as writer:
        pairs = zip(ids, texts, strict=True)
        while batch := list(islice(pairs, _BATCH)):
            writer.add_texts(*zip(*batch, strict=True))
    return writer.count


class WordIndex(ImpactIndex):
    """An index that `build_word_index` wrote. Any number of threads may use it at once."""

    def __init__(self, handle: JavaObject, path: Path) -> None:
        super().__init__(handle, path)
        self._ids = self.ids()

    def ranked(self, text: str, k: int, k1: float = BM25_K1, b: float = BM25_B) -> list[tuple[str, float]]:
        """The best `k` documents for the words of `text`: ids and BM25 scores, by score, then in order of writing.

        k1 >= 0 is the saturation of the term frequency, b in [0, 1] the weight of the document's length. Raises
        ValueError on bad arguments.
        """
        (words,) = words_of([text])
        counts = Counter(words)
        query = (pack_texts("term", counts), pack_floats(np.array([*counts.values()], np.float32)))
        most = min(k, max(1, self.count))
        ordinals, scores = unpack_hits(java_call(self._impacts.bm25, self.handle, *query, most, float(k1), float(b)))
        return [(self._ids[o], s) for o, s in zip(ordinals.tolist(), scores.tolist(), strict=True)]
