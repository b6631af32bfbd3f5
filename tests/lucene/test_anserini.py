"""Anserini's own searchers, which pyserini wraps, read our indexes and give the same answers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lightretriever.artifacts.evaluation.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import JavaObject, java_class
from tests.lucene.support import Collection, named_query, search

COMMON = ["the", "of", "a", "and", "retrieval", "retrieving", "index", "indexes", "vector", "vectors", "engine"]
WORDS = [*COMMON, "quick", "fox", "running", "café", "naïve", "2021", "x-ray"]


def plain(hits: JavaObject) -> list[tuple[str, float]]:
    return [(hit.docid, hit.score) for hit in hits]


def assert_same_hits(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> None:
    """Anserini rounds to four decimals, and takes millionths off from the second of two equal scores on."""
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    np.testing.assert_allclose([score for _, score in ours], [score for _, score in theirs], rtol=0, atol=1e-4)


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    random = np.random.default_rng(4)
    return {f"t{i:04}": " ".join(random.choice(WORDS, random.integers(0, 60))) for i in range(500)}


@pytest.fixture(scope="module")
def words_path(texts: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "bm25"
    assert build_word_index(path, iter(texts), iter(texts.values())) == 500
    return path


@pytest.fixture
def words(words_path: Path) -> Iterator[WordIndex]:
    with WordIndex.open(words_path) as index:
        yield index


def test_impact_searcher_gives_the_same_hits(written: Path, index: ImpactIndex, collection: Collection) -> None:
    searcher = java_class("io.anserini.search.SimpleImpactSearcher")(str(written))
    assert searcher.get_total_num_docs() == 1500
    random = np.random.default_rng(8)
    for length in (1, 3, 10):
        counts = {int(term): int(random.integers(1, 4)) for term in random.integers(0, 200, length)}
        terms = java_class("java.util.HashMap")()
        for term, count in counts.items():
            terms.put(str(term), count)
        ordinals, scores = search(index, *named_query({term: float(count) for term, count in counts.items()}), 50)
        ours = [(collection.ids[o], s) for o, s in zip(ordinals.tolist(), scores.tolist(), strict=True)]
        assert plain(searcher.search(terms, 50)) == ours
    assert searcher.doc(7).get("id") == "doc-00007"
    searcher.close()


@pytest.mark.parametrize(
    "text",
    ["retrieval", "The quick foxes", "retrieval retrieval of VECTORS", "café 2021 x ray", "the of", "", "unheard"],
)
def test_bm25_gives_the_same_hits(words_path: Path, words: WordIndex, text: str) -> None:
    searcher = java_class("io.anserini.search.SimpleSearcher")(str(words_path))
    assert_same_hits(words.ranked(text, 40), plain(searcher.search(text, 40)))
    searcher.set_bm25(1.2, 0.75)
    assert_same_hits(words.ranked(text, 40, k1=1.2, b=0.75), plain(searcher.search(text, 40)))
    assert words.ranked(text, 10**12)[:40] == words.ranked(text, 40)
    searcher.close()
