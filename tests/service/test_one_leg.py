"""Bundles without a dense leg over HTTP, and queries for which a leg has nothing."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.asking import ask
from tests.support.tiny import BundleOf

QUERY = "play music from the terminal"
KINDS: tuple[VocabularyKind, ...] = ("words", "tokens")


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, bundle_of: BundleOf) -> Iterator[list[TestClient]]:
    """Services of the same documents, whose bundle has no dense leg, or has one."""
    with ExitStack() as stack:
        yield [stack.enter_context(client_of(bundle_of(request.param, dense), SETTINGS)) for dense in (False, True)]


@pytest.fixture
def sparse(both: list[TestClient]) -> TestClient:
    """A service whose bundle has no dense leg."""
    return both[0]


def test_hybrid_is_the_sparse_leg(both: list[TestClient]) -> None:
    hybrid, alone, of_whole = (
        ask(client, QUERY, explain=mode == "hybrid", k=50, mode=mode)
        for client, mode in zip((both[0], *both), ("hybrid", "sparse", "sparse"), strict=True)
    )
    assert alone["hits"] == of_whole["hits"]
    assert [hit["id"] for hit in hybrid["hits"]] == [hit["id"] for hit in alone["hits"]]
    assert hybrid["degraded"] == []
    assert "matched" not in hybrid
    assert (hybrid["timings_ms"]["dense"], hybrid["timings_ms"]["rescore"]) == (None, None)
    for hit in hybrid["hits"]:
        assert hit["dense"] is None
        explanation = hit["explanation"]
        assert explanation["fusion"]["dense"] is None
        assert [word["word"] for word in explanation["words"]] == QUERY.split()
        assert {word["dense"] for word in explanation["words"]} == {None}
        assert all(word["tokens"] == [] for word in explanation["words"])
        assert sum(word["sparse"] for word in explanation["words"]) == hit["sparse"]["score"]
    assert [hit["score"] for hit in alone["hits"]] == [hit["sparse"]["score"] for hit in hybrid["hits"]]


def test_its_facts(sparse: TestClient) -> None:
    info = sparse.get("/info").json()
    assert info["bundle"]["dense_index"] is None
    assert info["modes"] == ["hybrid", "sparse"]
    assert info["legs"].keys() == {"sparse"}
    assert info["bundle"]["fusion_weights"] == {"dense": 0.0, "sparse": 1.0}
    encoded = sparse.post("/encode", json={"text": QUERY}).json()
    assert (encoded["dense"], encoded["tokens"]) == ([], [])
    assert encoded["terms"]
    assert encoded["dimension"] == 0
    assert encoded["timings_ms"]["encode"] is None


def test_everything_else_goes_on(sparse: TestClient) -> None:
    answer = ask(sparse, QUERY, filter={"field": "year", "gte": 2005}, snippets={}, fusion={"method": "rrf"}, k=5)
    assert answer["hits"]
    assert all(hit["fields"]["year"] >= 2005 for hit in answer["hits"])
    assert any(snippet["marks"] for hit in answer["hits"] for snippet in hit["snippets"].values())
    assert sparse.get("/readyz").status_code == 200


def test_a_query_of_stop_words_is_left_to_the_dense_leg(meaning: TestClient) -> None:
    answer = ask(meaning, "the and of", explain=True)
    assert len(answer["hits"]) == 10
    assert answer["degraded"] == []
    for hit in answer["hits"]:
        assert hit["sparse"] is None
        assert hit["explanation"]["fusion"]["sparse"] is None
        assert "coverage" not in hit["explanation"]
        words = hit["explanation"]["words"]
        assert {word["sparse"] for word in words} == {None}
        assert sum(word["dense"] for word in words) == pytest.approx(hit["dense"]["score"], abs=1e-6)
    assert [hit["id"] for hit in answer["hits"]] == [
        hit["id"] for hit in ask(meaning, "the and of", mode="dense")["hits"]
    ]


def test_a_word_that_the_tokenizer_lacks_is_left_to_the_sparse_leg(meaning: TestClient) -> None:
    answer = ask(meaning, "xkjdh", explain=True)
    assert (answer["hits"], answer["degraded"]) == ([], [])
