"""Queries as they are typed: misspelt, not typed to their end, in another number."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lightretriever.service.schemas import Info, SearchResponse
from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.asking import ask
from tests.support.tiny import english_tokenizer, make_tiny_bundle

FUSION = {"fusion": {"method": "linear", "weights": {"dense": 0.4, "sparse": 0.6}}}


def test_a_better_spelling_is_suggested(meaning: TestClient) -> None:
    answer = ask(meaning, "Harvest honney, from Beekepers", spelling="suggest")
    assert answer["did_you_mean"] == "Harvest honey, from Beekeepers"
    assert "searched" not in answer
    assert answer["timings_ms"]["spelling"] >= 0


def test_a_better_spelling_is_searched_for(meaning: TestClient) -> None:
    answer = ask(meaning, "bycicle tyer", spelling="auto", snippets={}, explain=True)
    assert answer["searched"] == "bicycle tyre"
    assert "did_you_mean" not in answer
    right = ask(meaning, "bicycle tyre", snippets={}, explain=True)
    assert answer["hits"] == right["hits"]
    assert answer["hits"][0]["fields"]["title"] == "Repairing bicycles"


KNOWN = ("bicycle tyre", "bicycles", "the tyres of bicycle", "bababa", "B2B 1999 c++", "…", "🙂 oven")
NO_WORDS = ("HONNEY honNey", "honney-19", "a@honney.org")
NO_BEGINNINGS = ("tell the", "bees", "mend ", "mend,", "c", "bees 12", "bees zz", "e-hon")


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        *((query, {"spelling": "auto"}) for query in (*KNOWN, *NO_WORDS)),
        *((query, {"prefix": True}) for query in NO_BEGINNINGS),
    ],
)
def test_words_that_are_known_or_no_beginning_stay(meaning: TestClient, query: str, asked: dict[str, Any]) -> None:
    answer = meaning.post("/search", json={"query": query, "mode": "hybrid", **asked}).json()
    assert not {"searched", "did_you_mean"} & answer.keys()


@pytest.mark.parametrize(
    ("query", "searched"),
    [
        ("punct", "punctured"),
        ("the com", "the compass"),
        ("Mountain", "Mountains"),
        ("RENN", "Rennet"),
        ("high-moun", "high-mountains"),
    ],
)
def test_the_last_word_is_completed(meaning: TestClient, query: str, searched: str) -> None:
    answer = ask(meaning, query, prefix=True)
    assert answer["searched"] == searched
    assert answer["hits"] == ask(meaning, searched)["hits"]


def test_the_last_word_stands_for_all_that_begin_so(meaning: TestClient) -> None:
    """Two forms of cheese, and one of each of the others; of equals, the first by the alphabet."""
    answer = ask(meaning, "ch", prefix=True, k=10, mode="sparse", explain=True)
    assert answer["searched"] == "cheese"
    assert answer["completions"] == ["cheese", "chain", "chess"]
    titles = [hit["fields"]["title"] for hit in answer["hits"]]
    assert titles[0] == "Making cheese"
    assert set(titles[1:]) == {"Repairing bicycles", "Playing chess"}
    weights = {word["word"]: word["terms"][0]["weight"] for word in answer["hits"][0]["explanation"]["words"]}
    assert weights == pytest.approx({"cheese": 1.0, "chain": 0.25, "chess": 0.25})
    behind = ask(meaning, "Oil ch", prefix=True, spelling="auto")
    assert {"Oil cheese", "Oil chain", "Oil chess"} == {*behind["completions"]}


def test_a_completion_that_a_leg_does_not_know_is_suggested_only(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "bundle", vocabulary="words", own_tokenizer=english_tokenizer())
    with client_of(bundle, SETTINGS) as client:
        answer = ask(client, "music re", prefix=True, mode="dense", k=100)
        assert answer["searched"] == "music release"
        assert "music reads" in answer["completions"]
        plain = ask(client, "music", mode="dense", k=100)  # with the document of this id first
        scores = [{hit["id"]: hit["dense"]["score"] for hit in one["hits"]} for one in (answer, plain)]
        assert scores[0] == scores[1]


def test_a_word_may_be_whole_or_not(meaning: TestClient) -> None:
    answer = ask(meaning, "Compas", prefix=True)
    assert (answer["searched"], answer["completions"]) == ("Compass", ["Compass"])
    assert "completions" not in ask(meaning, "compass", prefix=True)
    assert "completions" not in ask(meaning, "compass")


def test_both_together_as_a_client_reads_them(meaning: TestClient) -> None:
    assert ask(meaning, "ripe chesee cel", prefix=True, spelling="auto")["searched"] == "ripe cheese cellar"
    asked = {"query": "bycicle ty", "prefix": True, "spelling": "suggest"}
    answer = SearchResponse.model_validate_json(meaning.post("/search", json=asked).content)
    assert (answer.searched, answer.did_you_mean) == ("bycicle tyre", "bicycle tyre")
    assert answer.matched in ("weak", "strong")
    assert Info.model_validate_json(meaning.get("/info").content).spelling


@pytest.mark.parametrize(
    ("query", "title"), [("dinghy sailed", "Sailing dinghies"), ("tomato plant", "Growing tomatoes")]
)
def test_another_number_of_a_word_is_found_by_words(meaning: TestClient, query: str, title: str) -> None:
    for mode in ("sparse", "hybrid"):
        answer = ask(meaning, query, mode=mode, **(FUSION if mode == "hybrid" else {}))
        assert answer["hits"][0]["fields"]["title"] == title


def test_a_batch_takes_it_for_each_search(meaning: TestClient) -> None:
    searches = [{"query": "honney", "spelling": "auto"}, {"query": "honey"}]
    first, second = meaning.post("/search/batch", json={"searches": searches}).json()["results"]
    assert first["searched"] == "honey"
    assert first["hits"] == second["hits"]
