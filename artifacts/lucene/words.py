"""BM25 on the words of the documents, as Anserini computes it: the baseline of the evaluation, not used in serving."""

from collections.abc import Iterable
from itertools import islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from artifacts.lucene.index import LuceneWriter, check_texts, chunks
from artifacts.lucene.jvm import JavaObject, java_call, java_class
from artifacts.lucene.packed import from_java, pack_text, pack_texts, unpack_hits, utf8
from artifacts.lucene.search import LuceneIndex

__all__ = ["WordIndex", "build_word_index"]

_BATCH = 1000


def build_word_index(path: Path, ids: Iterable[str], texts: Iterable[str]) -> int:
    """Index `texts`, named by as many different `ids`, in the directory `path`, which must not exist or be empty.

    Words are split, lowercased, freed of stop words and stemmed (Porter) by Anserini's DefaultEnglishAnalyzer. Returns
    the number of documents. Raises ValueError on bad input, and BundleError when `path` is not empty; either way
    nothing is left behind.
    """
    with _WordIndexWriter(path) as writer:
        pairs = zip(ids, texts, strict=True)
        while batch := list(islice(pairs, _BATCH)):
            writer.add(batch)
    return writer.count


class WordIndex(LuceneIndex):
    """An index that `build_word_index` wrote."""

    def __init__(self, handle: JavaObject, path: Path) -> None:
        super().__init__(handle, path)
        self._analyzer = _english()
        self._words = java_class("lightretriever.WordSearch")
        self._ids = self.ids()

    def search(self, text: str, k: int, k1: float = 0.9, b: float = 0.4) -> list[tuple[str, float]]:
        """The best `k` documents for the words of `text`: ids and BM25 scores, by score, then in order of writing.

        k1 >= 0 is the saturation of the term frequency, b in [0, 1] the weight of the document's length.
        """
        if k < 1:
            raise ValueError(f"k is {k}; it must be 1 or more.")
        arguments = (self._analyzer, pack_text("query", text), min(k, max(1, self.count)), float(k1), float(b))
        packed = from_java(java_call(self._words.search, self._handle, *arguments))
        ordinals, scores = unpack_hits(packed)
        return [(self._ids[o], s) for o, s in zip(ordinals.tolist(), scores.tolist(), strict=True)]

    def scores(
        self, text: str, ordinals: npt.NDArray[np.integer[Any]], k1: float = 0.9, b: float = 0.4
    ) -> npt.NDArray[np.float32]:
        """The scores (m,) float32 of the documents `ordinals` (m,), as `search` gives them; 0.0 where no word matches.

        A document's ordinal is its place in the order of writing. Raises ValueError on bad arguments.
        """
        order = np.argsort(ordinals, kind="stable")
        wanted = self._packed_ordinals(ordinals[order])
        scores = np.zeros(len(ordinals), np.float32)
        if wanted:
            arguments = (self._analyzer, pack_text("query", text), wanted, float(k1), float(b))
            packed = from_java(java_call(self._words.scores, self._handle, *arguments))
            scores[order] = np.frombuffer(packed, dtype="<f4")
        return scores


class _WordIndexWriter(LuceneWriter):
    def __init__(self, path: Path) -> None:
        super().__init__(path, _english())

    def add(self, batch: list[tuple[str, str]]) -> None:
        ids = [utf8("document id", name) for name, _ in batch]
        texts = [utf8(f"the text of document {name!r}:", text) for name, text in batch]
        check_texts(ids, texts)
        for start, end in chunks(ids, texts, repeat(0, len(ids))):
            self._call(self._java.addTexts, *pack_texts(ids[start:end]), *pack_texts(texts[start:end]))
            self.count += end - start


def _english() -> JavaObject:
    return java_call(java_class("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance)
