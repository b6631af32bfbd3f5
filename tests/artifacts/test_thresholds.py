"""Thresholds of a match: in the manifest, from the same unrelated queries every time; absent in a small vocabulary."""

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from lightretriever.artifacts.bundle.manifest import MatchThresholds, read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.bundle.writer import query_vectors, unrelated_queries
from tests.support.meaning import TEXTS, make_meaningful_bundle
from tests.support.tiny import make_tiny_bundle


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_meaningful_bundle(tmp_path_factory.mktemp("meaning") / "bundle")


def best_scores(bundle: Bundle, queries: list[np.ndarray]) -> list[float]:
    table, index = bundle.table("search"), bundle.dense()
    return [float(index.search(vector, 1)[1][0]) for vector in query_vectors(table, queries)]


def test_the_manifest_has_the_scores_that_few_unrelated_queries_reach_and_related_ones_do(bundle: Bundle) -> None:
    match = bundle.manifest.tasks["search"].match
    assert match is not None
    scores = np.array(best_scores(bundle, unrelated_queries(bundle.tokenizer())))
    assert match.queries == len(scores) == 1000
    assert np.mean(scores >= match.weak) == pytest.approx(0.05, abs=0.01)
    assert np.mean(scores >= match.strong) == pytest.approx(0.005, abs=0.002)
    related = best_scores(bundle, list(bundle.tokenizer().as_queries(title for title, _ in TEXTS)))
    assert np.mean(np.array(related) >= match.weak) >= 0.9
    assert read_manifest(bundle.path).tasks["search"].match == match
    assert verify_bundle(bundle.path) == []


def test_the_same_tokenizer_gives_the_same_queries_of_whole_words(bundle: Bundle) -> None:
    tokenizer = bundle.tokenizer()
    queries = unrelated_queries(tokenizer)
    assert [query.tolist() for query in queries] == [query.tolist() for query in unrelated_queries(tokenizer)]
    assert {len(query) for query in queries} == {2, 4, 6, 8}
    assert all(tokenizer.token(int(token)).isalpha() for query in queries for token in query)


def test_a_small_vocabulary_gives_no_thresholds(tmp_path: Path) -> None:
    tiny, few = make_tiny_bundle(tmp_path / "tiny", documents=20), make_meaningful_bundle(tmp_path / "b", invented=50)
    for bundle in (tiny, few):
        assert unrelated_queries(bundle.tokenizer()) == []
        assert [task.match for task in bundle.manifest.tasks.values()] == [None] * len(bundle.manifest.tasks)
        assert b'"match"' not in bundle.manifest.to_bytes()


@pytest.mark.parametrize(("weak", "strong"), [(0.5, 0.4), (float("nan"), 0.5), (-2.0, 0.5), (0.2, 7.0)])
def test_impossible_thresholds_are_refused(weak: float, strong: float) -> None:
    with pytest.raises(ValidationError):
        MatchThresholds(weak=weak, strong=strong, queries=1000)
