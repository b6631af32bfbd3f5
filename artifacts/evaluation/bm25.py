"""BM25 on words, as Anserini computes it by Lucene's own similarity: a system to compare with, over an index of its
own."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from lightretriever.artifacts.evaluation.runs import Ranking, ranking
from lightretriever.artifacts.reports import tracked
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import JavaObject, java_call, pack_floats, pack_texts, unpack_hits
from lightretriever.artifacts.sparse.vocabulary import words_of
from lightretriever.artifacts.sparse.writer import ImpactIndexWriter
from lightretriever.artifacts.tokens.tokenizer import text_of

BM25: Final = {"k1": 0.9, "b": 0.4}
"""Saturation of the term frequency, and weight of the document's length: Anserini's defaults."""

SCRATCH: Final = "words-"
"""How the name of the folder of a passing index begins. A process that is killed leaves it."""

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

    def ranked(self, text: str, k: int, k1: float = BM25["k1"], b: float = BM25["b"]) -> list[tuple[str, float]]:
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


@contextmanager
def word_index(parent: Path, ids: Collection[str], texts: Iterable[str], stage: str) -> Iterator[WordIndex]:
    """A BM25 index of `texts`, named by `ids`, in a new folder below `parent` that is removed after the block."""
    with TemporaryDirectory(prefix=SCRATCH, dir=parent, ignore_cleanup_errors=True) as folder:
        build_word_index(Path(folder) / "lucene", ids, tracked(texts, stage, total=len(ids), unit="documents"))
        with WordIndex.open(Path(folder) / "lucene") as words:
            yield words


def run_bm25(index: ImpactIndex, queries: Mapping[str, str], parent: Path, depth: int) -> dict[str, Ranking]:
    """BM25 over the words of the bundle's documents, by an index below `parent` that is removed again."""
    with word_index(parent, index.ids(), document_texts(index), "bm25") as words:
        items = tracked(queries.items(), "evaluate", total=len(queries), unit="queries")
        return {name: ranking(words.ranked(text, depth)) for name, text in items}


def document_texts(index: ImpactIndex) -> Iterator[str]:
    """Title and text of every document, in ordinal order."""
    for start in range(0, index.count, _BATCH):
        for raw in index.documents(np.arange(start, min(start + _BATCH, index.count))):
            yield text_of(json.loads(raw))
