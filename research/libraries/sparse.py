"""What the sparse leg is compared with: Lucene's impacts, and Lucene's BM25."""

from typing import Final

from lightretriever.artifacts.evaluation.bm25 import WordIndex
from research.libraries.library import DEPTH, Index, Library, Row, Source
from research.servers.bundle_documents import word_index

__all__ = ["SPARSE"]


def _lucene(source: Source, build: Row) -> Index:
    """Lucene's own queries over the impacts."""
    index = source.bundle.sparse()
    return Index(lambda query: index.search(query.terms, query.weights, DEPTH)[0])


def _bm25(source: Source, build: Row) -> Index:
    """Lucene's BM25 over words; a search includes finding the words of the query."""
    index = WordIndex.open(word_index(source.bundle, source.work))
    ordinals = {name: number for number, name in enumerate(index.ids())}
    return Index(
        lambda text: index.search(text, DEPTH),
        prepare=lambda query: query.text,
        numbers=lambda answer: [ordinals[name] for name, _ in answer],
    )


SPARSE: Final = {
    "lucene": Library("pyserini", _lucene),
    "bm25": Library("pyserini", _bm25),
}
"""Libraries by name."""
