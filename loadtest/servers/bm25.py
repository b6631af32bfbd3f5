"""BM25 alone: Lucene over the words of a bundle's documents, as Anserini computes it (k1 0.9, b 0.4).

    python -m lightretriever.loadtest.servers.bm25 BUNDLE --work FOLDER --port 0

The index is made in FOLDER at the first start. `--build` makes it and ends; Anserini's own server can serve it too.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.sparse.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.loadtest.servers.documents import built, document_texts
from lightretriever.loadtest.servers.thin import Hits, application, serve, warm_up
from lightretriever.service.search.documents import Documents

__all__ = ["Bm25", "main", "word_index"]


def word_index(bundle: Bundle, index: ImpactIndex, work: Path) -> Path:
    """The folder of the bundle's word index, made if it isn't there."""

    def build(path: Path) -> None:
        build_word_index(path, index.ids(), document_texts(index))

    return built(work, bundle, "words", build)


class Bm25:
    """Searches words; documents come from the bundle."""

    def __init__(self, words: WordIndex, index: ImpactIndex) -> None:
        self._words = words
        self.documents = Documents(index)
        self._ordinals = {name: number for number, name in enumerate(index.ids())}

    def search(self, query: str, k: int) -> Hits:
        """The best `k` documents."""
        found = self._words.search(query, k)
        ordinals = np.array([self._ordinals[name] for name, _ in found], dtype=np.int64)
        documents = self.documents.fetch(ordinals, None)
        return [
            {"id": name, "rank": rank, "score": score, "fields": fields}
            for rank, ((name, score), (_, fields)) in enumerate(zip(found, documents, strict=True), start=1)
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM; returns the exit status."""
    parser = argparse.ArgumentParser(description="BM25 over the documents of a bundle.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="folder for the index")
    parser.add_argument("--build", action="store_true", help="make the index, print its folder, and end")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    given = parser.parse_args(arguments)
    try:
        bundle = Bundle.open(given.bundle)
        with bundle.sparse() as index:
            path = word_index(bundle, index, given.work)
            if given.build:
                print(path)
                return 0
            with WordIndex.open(path) as words:
                bm25 = Bm25(words, index)
                warm_up(bm25.search, bm25.documents.probes(2000))
                what = f"BM25 over {index.count} documents"
                serve(partial(application, bm25.search), what, host=given.host, port=given.port)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
