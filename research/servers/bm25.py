"""BM25 alone: Lucene over the words of a bundle's documents, with Anserini's parameters (k1 0.9, b 0.4).

    python -m research.servers.bm25 BUNDLE --work FOLDER --port 0

The first start builds the index in FOLDER. `--build` only builds it; Anserini's own server can serve it too.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.bm25 import WordIndex
from lightretriever.service.search.documents import Documents
from research.servers.bundle_documents import word_index
from research.servers.minimal_server import Hits, Search, serve_system


@contextmanager
def opened(bundle: Bundle, path: Path) -> Iterator[Search]:
    """Search the words in the index `path`; documents come from the bundle."""
    with bundle.sparse() as index, WordIndex.open(path) as words:
        documents = Documents(index, bundle.manifest.field_names)
        ordinal_of = {name: number for number, name in enumerate(index.ids())}

        def search(query: str, k: int) -> Hits:
            found = words.ranked(query, k)
            ordinals = np.array([ordinal_of[name] for name, _ in found], dtype=np.int64)
            return [
                {"id": name, "rank": rank, "score": score, "fields": fields}
                for rank, ((name, score), (_, fields)) in enumerate(
                    zip(found, documents.fetch(ordinals, None), strict=True), start=1
                )
            ]

        yield search


main = serve_system("BM25", word_index, opened)


if __name__ == "__main__":
    sys.exit(main())
