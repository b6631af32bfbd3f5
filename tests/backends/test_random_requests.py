"""Random requests, answered as brute force over all documents answers them: on this machine, beside a journal, and on
a cluster. And how many values of a field are counted."""

import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest

from lightretriever.artifacts.bundle.manifest import LegWeights
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.documents.bounds import MAX_COUNTED
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.schemas import Hit, SearchRequest, SearchResponse
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.backends.brute_force import FIELDS, LEAVES, TAGS, BruteForce, Expected, random_request
from tests.live.mirror import Mirror
from tests.support.cluster import connected, remove_indexes
from tests.support.tiny import TinyDocument, make_tiny_bundle, tiny_documents
from tests.support.wordings import raises

NAME = f"random-{os.getpid()}"
ERROR = 1e-5  # of scores: vectors and their products are float32
CHANGES = 80
SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=1)
KINDS = ("words", "tokens", "live", "cluster")


def documents() -> Iterator[TinyDocument]:
    """Documents with fields of one value, of several and of none."""
    for number, one in enumerate(tiny_documents(300)):
        more: dict[str, Any] = {"tags": [TAGS[number % 4], TAGS[number % 3]]} if number % 5 else {}
        size = number * 7 % 100
        more |= {"size": [size, 50] if number % 7 == 0 else size} if number % 3 else {}
        more |= {"day": f"20{number % 25:02}-06-15T12:00:00Z"} if number % 6 else {}
        yield TinyDocument(one.id, one.title, one.text, one.year, more=more)


@pytest.fixture(scope="module", params=KINDS)
def searched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[SearchEngine, BruteForce]]:
    """An engine, and the same documents for brute force."""
    folder: Path = tmp_path_factory.mktemp("random")
    vocabulary: VocabularyKind = "tokens" if request.param == "tokens" else "words"
    bundle = make_tiny_bundle(
        folder / "bundle",
        documents=list(documents()),
        vocabulary=vocabulary,
        fields=FIELDS,
        idf=request.param == "tokens",
        weights=LegWeights(dense=0.4, sparse=0.6),
    )
    mirror, settings = Mirror(bundle, 7), SETTINGS
    if request.param == "live":
        settings = settings.model_copy(update={"live": folder / "live"})
    if request.param == "cluster":
        url = request.getfixturevalue("opensearch")
        with connected(url) as cluster:
            push(bundle, cluster, NAME, replicas=0)
        settings = Settings(deadline_ms=60_000, warm_up_queries=1, opensearch_url=url, opensearch_index=NAME)
    with SearchEngine.open(bundle, settings) as engine:
        if request.param == "live":
            live = engine.parts.backends.live
            assert live is not None
            for _ in range(CHANGES):
                (result,) = live.write([mirror.change()], perf_counter() + 60)
                assert not isinstance(result, LightRetrieverError)
        yield engine, BruteForce(bundle, mirror.rows)
    if request.param == "cluster":
        remove_indexes(url, NAME)


def compare(engine: SearchEngine, model: BruteForce, asked: dict[str, Any]) -> None:
    """Ask both. The same hits in the same order, but for neighbours whose scores are equal up to rounding."""
    expected = model.answer(asked)
    answer = engine.search(SearchRequest.model_validate(asked | {"explain": True}))
    assert answer.degraded == []
    assert answer.candidates == expected.candidates
    assert len(answer.hits) == len(expected.ids)
    for hit, wanted in zip(answer.hits, expected.ids, strict=True):
        assert hit.score == pytest.approx(expected.scores[hit.id], rel=ERROR, abs=ERROR)
        if hit.id != wanted:
            assert expected.scores[hit.id] == pytest.approx(expected.scores[wanted], rel=ERROR, abs=ERROR)
            assert expected.keys.get(hit.id) == expected.keys.get(wanted)
        for name, scores in expected.legs.items():
            leg = getattr(hit, name)
            assert leg.score == pytest.approx(scores[hit.id], rel=ERROR, abs=ERROR)
            if (name, "like" in asked) != ("dense", True):  # a document's vector is no sum of tokens
                _compare_explanation(hit, name, model)
    _compare_groups(answer, expected)
    _compare_counts(answer, expected)


def _compare_explanation(hit: Hit, name: str, model: BruteForce) -> None:
    """The shares of a leg are those of its terms or tokens, and sum to its score."""
    assert hit.explanation is not None
    words, row = hit.explanation.words, model.rows[model.ids.index(hit.id)]
    assert sum(getattr(word, name) for word in words) == pytest.approx(getattr(hit, name).score, rel=ERROR, abs=ERROR)
    for word in words:
        parts = [getattr(part, name) for part in (word.terms if name == "sparse" else word.tokens)]
        assert getattr(word, name) == pytest.approx(sum(parts), rel=ERROR, abs=ERROR)
        assert word.added == any(term.added for term in word.terms)
    for term in (one for word in words for one in word.terms if name == "sparse"):
        assert term.impact == row.impacts.get(term.term, 0)
    fusion = hit.explanation.fusion
    shares = [fusion.dense, fusion.sparse, fusion.feedback, *(hit.explanation.boosts or [])]
    assert sum(share or 0.0 for share in shares) == pytest.approx(hit.score, rel=ERROR, abs=ERROR)


def _compare_groups(answer: SearchResponse, expected: Expected) -> None:
    if expected.groups is None:
        return
    for hit, best, (value, size) in zip(answer.hits, expected.ids, expected.groups, strict=True):
        assert hit.group is not None
        if hit.id == best:  # else two groups of equal scores changed places
            assert (hit.group.value, hit.group.candidates) == (value, size)


def _compare_counts(answer: SearchResponse, expected: Expected) -> None:
    for name, counts in expected.facets.items():
        assert answer.facets is not None
        found = [(one.value, one.count) for one in answer.facets[name]]
        assert found == sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    for name, ranges in expected.ranges.items():
        assert answer.facet_ranges is not None
        assert [one.count for one in answer.facet_ranges[name]] == ranges


def test_random_requests_get_the_answers_of_brute_force(searched: tuple[SearchEngine, BruteForce]) -> None:
    for seed in range(40):
        compare(*searched, random_request(np.random.default_rng(seed)))


def test_documents_like_another_are_those_of_brute_force(searched: tuple[SearchEngine, BruteForce]) -> None:
    engine, model = searched
    for seed in range(30):
        asked = random_request(np.random.default_rng(seed))
        if asked.pop("query") is not None:
            others = {name: value for name, value in asked.items() if name not in ("terms", "task")}
            compare(engine, model, others | {"like": model.ids[seed * 11 % len(model.ids)]})


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
@pytest.mark.parametrize("mode", [None, "hybrid", "dense", "sparse"])
def test_a_condition_holds_where_brute_force_says(
    searched: tuple[SearchEngine, BruteForce], mode: str | None, leaf: dict[str, Any]
) -> None:
    asked = {"query": "play music", "mode": mode, "candidates": 1000} if mode else {"query": None}
    for condition in (leaf, {"not": leaf}):
        compare(*searched, {**asked, "k": 40, "offset": 2, "filter": condition})


@pytest.mark.slow
def test_a_thousand_random_requests_get_the_answers_of_brute_force(searched: tuple[SearchEngine, BruteForce]) -> None:
    for seed in range(1000, 2000):
        compare(*searched, random_request(np.random.default_rng(seed)))


VALUES = f"values-{os.getpid()}"
EACH = 1000


def asked(years: int) -> SearchRequest:
    return SearchRequest.model_validate(
        {"query": None, "filter": {"field": "year", "lt": 2000 + years}, "k": 1, "fields": [], "facets": ["tags"]}
    )


@pytest.mark.parametrize("cluster", [False, True])
def test_more_than_ten_thousand_values_are_refused(
    request: pytest.FixtureRequest, tmp_path: Path, cluster: bool
) -> None:
    documents = [
        TinyDocument(f"doc-{n}", "", "music", 2000 + n, more={"tags": [f"{n}-{value}" for value in range(EACH)]})
        for n in range(MAX_COUNTED // EACH + 1)
    ]
    bundle = make_tiny_bundle(tmp_path / "bundle", documents=documents, fields={"tags": "keyword", "year": "number"})
    settings = Settings(deadline_ms=60_000)
    if cluster:
        url = request.getfixturevalue("opensearch")
        request.addfinalizer(lambda: remove_indexes(url, VALUES))
        with connected(url) as connection:
            push(bundle, connection, VALUES, replicas=0)
        settings = Settings(deadline_ms=60_000, opensearch_url=url, opensearch_index=VALUES)
    with SearchEngine.open(bundle, settings) as engine:
        answer = engine.search(asked(len(documents) - 1))
        assert answer.facets is not None
        assert (len(answer.facets["tags"]), answer.total) == (MAX_COUNTED, len(documents) - 1)
        with raises(InvalidRequestError, naming="tags"):
            engine.search(asked(len(documents)))
