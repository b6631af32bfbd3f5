"""BM25 on the words of the documents, as Anserini computes it: over an index of nothing but words, for the evaluation,
or over the words that a bundle's index has beside the impacts."""

from collections.abc import Iterable, Sequence
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.sparse.arguments import check_k
from lightretriever.artifacts.sparse.index import DocumentSet
from lightretriever.artifacts.sparse.java_bytes import from_java, pack_text, pack_texts, unpack_hits, unpack_texts, utf8
from lightretriever.artifacts.sparse.jvm import JavaObject, java_call, java_class
from lightretriever.artifacts.sparse.reader import LuceneIndex
from lightretriever.artifacts.sparse.writer import LuceneWriter, check_texts, chunks, word_analyzer

__all__ = [
    "BM25_B",
    "BM25_K1",
    "WordIndex",
    "WordSearch",
    "build_word_index",
    "count_texts",
    "indexed_words",
    "words_of",
]

BM25_K1: Final = 0.9
"""Saturation of the term frequency, Anserini's default."""

BM25_B: Final = 0.4
"""Weight of the document's length, Anserini's default."""

_BATCH: Final = 1000
_ONLY_FIELD: Final = b"contents"  # of an index of nothing but words, where Anserini looks for them
_FIELD: Final = b"words"


def build_word_index(path: Path, ids: Iterable[str], texts: Iterable[str]) -> int:
    """Index `texts`, named by as many different `ids`, in the directory `path`, which must not exist or be empty.

    The words are those of `writer.word_analyzer`. Returns the number of documents. Raises ValueError on bad input, and
    BundleError when `path` is not empty; either way nothing is left behind.
    """
    with _WordIndexWriter(path) as writer:
        pairs = zip(ids, texts, strict=True)
        while batch := list(islice(pairs, _BATCH)):
            writer.add(batch)
    return writer.count


class WordSearch:
    """BM25 over the words of an open index. Any number of threads may use it at once; the index is closed elsewhere."""

    def __init__(self, index: LuceneIndex, field: bytes = _FIELD) -> None:
        """`field` is Lucene's name, UTF-8, of what holds the words: by default that of the index of a bundle."""
        self._index = index
        self._field = field
        self._analyzer = word_analyzer()
        self._java = java_class("lightretriever.WordSearch")

    def search(
        self, text: str, k: int, among: DocumentSet | None = None, *, k1: float = BM25_K1, b: float = BM25_B
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The best `k` documents, of those `among`, that have a word of `text`: ordinals (m,) and BM25 scores (m,).

        By score, then by ordinal; a score is the same whatever `among` is. k1 >= 0 is the saturation of the term
        frequency, b in [0, 1] the weight of the document's length. Raises ValueError on bad arguments.
        """
        check_k(k)
        most = min(k, max(1, self._index.count))
        handle = None if among is None else among.handle
        arguments = (*self._query(text), most, float(k1), float(b), handle)
        return unpack_hits(from_java(java_call(self._java.search, self._index.handle, *arguments)))

    def scores(
        self, text: str, ordinals: npt.NDArray[np.integer[Any]], *, k1: float = BM25_K1, b: float = BM25_B
    ) -> npt.NDArray[np.float32]:
        """The scores (m,) float32 of the documents `ordinals` (m,), as `search` gives them; 0.0 where no word matches.

        Raises ValueError on bad arguments.
        """
        order = np.argsort(ordinals, kind="stable")
        wanted = self._index.packed_ordinals(ordinals[order])
        scores = np.zeros(len(ordinals), np.float32)
        if wanted:
            arguments = (*self._query(text), wanted, float(k1), float(b))
            packed = from_java(java_call(self._java.scores, self._index.handle, *arguments))
            scores[order] = np.frombuffer(packed, dtype="<f4")
        return scores

    def shares(self, text: str, ordinals: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float32] | None:
        """The share of the different words of `text` that each of the documents `ordinals` (m,) has: (m,) float32.

        None for a text without words, such as one of stop words. Raises ValueError on bad arguments.
        """
        order = np.argsort(ordinals, kind="stable")
        wanted = self._index.packed_ordinals(ordinals[order])
        found = from_java(java_call(self._java.shares, self._index.handle, *self._query(text), wanted))
        if len(found) != 4 * len(ordinals):
            return None
        shares = np.empty(len(ordinals), np.float32)
        shares[order] = np.frombuffer(found, dtype="<f4")
        return shares

    def _query(self, text: str) -> tuple[JavaObject, bytearray, bytearray]:
        return self._analyzer, bytearray(self._field), pack_text("query", text)


def words_of(texts: Sequence[str]) -> list[str]:
    """The words of each text as BM25 counts them, in their order, with a space between two. ValueError for a text that
    is no Unicode."""
    packed = pack_texts([utf8("text", text) for text in texts])
    words = java_call(java_class("lightretriever.WordAnalyzer").words, word_analyzer(), *packed)
    return [text.decode() for text in unpack_texts(from_java(words), len(texts))]


def count_texts(index: LuceneIndex) -> int:
    """How many documents of a bundle's index have the words of their text in it."""
    return int(java_call(java_class("lightretriever.WordSearch").count, index.handle, bytearray(_FIELD)))


def indexed_words(index: LuceneIndex, first: int, end: int) -> list[str]:
    """The words that a bundle's index has of the documents `first` to `end` - 1, each as often as the document has it,
    with a space between two. Asks every word, so ask for many documents at once. ValueError on a bad ordinal."""
    index.packed_ordinals(np.array([first, end - 1]))
    words = java_call(java_class("lightretriever.WordSearch").words, index.handle, bytearray(_FIELD), first, end)
    return [text.decode() for text in unpack_texts(from_java(words), end - first)]


class WordIndex(LuceneIndex):
    """An index that `build_word_index` wrote."""

    def __init__(self, handle: JavaObject, path: Path) -> None:
        super().__init__(handle, path)
        self._words = WordSearch(self, _ONLY_FIELD)
        self._ids = self.ids()

    def search(self, text: str, k: int, k1: float = BM25_K1, b: float = BM25_B) -> list[tuple[str, float]]:
        """The best `k` documents for the words of `text`: ids and BM25 scores, by score, then in order of writing.

        k1 >= 0 is the saturation of the term frequency, b in [0, 1] the weight of the document's length.
        """
        ordinals, scores = self._words.search(text, k, k1=k1, b=b)
        return [(self._ids[o], s) for o, s in zip(ordinals.tolist(), scores.tolist(), strict=True)]

    def scores(
        self, text: str, ordinals: npt.NDArray[np.integer[Any]], k1: float = BM25_K1, b: float = BM25_B
    ) -> npt.NDArray[np.float32]:
        """The scores (m,) float32 of the documents `ordinals` (m,), as `search` gives them; 0.0 where no word matches.

        A document's ordinal is its place in the order of writing. Raises ValueError on bad arguments.
        """
        return self._words.scores(text, ordinals, k1=k1, b=b)


class _WordIndexWriter(LuceneWriter):
    def __init__(self, path: Path) -> None:
        super().__init__(path, word_analyzer())

    def add(self, batch: list[tuple[str, str]]) -> None:
        ids = [utf8("document id", name) for name, _ in batch]
        texts = [utf8(f"the text of document {name!r}:", text) for name, text in batch]
        check_texts(ids, texts)
        for start, end in chunks(ids, texts, repeat(0, len(ids))):
            self._call(self._java.addTexts, *pack_texts(ids[start:end]), *pack_texts(texts[start:end]))
            self.count += end - start
