"""Queries as they are typed: misspelt, not typed to their end, in another number, or the id of a document."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.service.conftest import SETTINGS
from tests.service.live import client_of
from tests.support.asking import ask
from tests.support.tiny import english_tokenizer, make_tiny_bundle

AUTO, SUGGEST, PREFIX = {"spelling": "auto"}, {"spelling": "suggest"}, {"prefix": True}
KNOWN = ("bicycle tyre", "bicycles", "the tyres of bicycle", "bababa", "B2B 1999 c++", "…", "🙂 oven")
NO_WORDS = ("HONNEY honNey", "honney-19", "a@honney.org")
NO_BEGINNINGS = ("tell the", "bees", "mend ", "mend,", "c", "bees 12", "bees zz", "e-hon", "compass")


@pytest.mark.parametrize(
    ("query", "asked", "told"),
    [
        ("Harvest honney, from Beekepers", SUGGEST, {"did_you_mean": "Harvest honey, from Beekeepers"}),
        ("bycicle tyer", AUTO, {"searched": "bicycle tyre"}),
        ("punct", PREFIX, {"searched": "punctured"}),
        ("the com", PREFIX, {"searched": "the compass"}),
        ("Compas", PREFIX, {"searched": "Compass"}),
        ("Mountain", PREFIX, {"searched": "Mountains"}),
        ("RENN", PREFIX, {"searched": "Rennet"}),
        ("high-moun", PREFIX, {"searched": "high-mountains"}),
        ("ripe chesee cel", AUTO | PREFIX, {"searched": "ripe cheese cellar"}),
        ("bycicle ty", SUGGEST | PREFIX, {"searched": "bycicle tyre", "did_you_mean": "bicycle tyre"}),
        *((query, AUTO, {}) for query in (*KNOWN, *NO_WORDS)),
        *((query, PREFIX, {}) for query in NO_BEGINNINGS),
    ],
)
def test_what_is_made_of_a_query(meaning: TestClient, query: str, asked: dict[str, Any], told: dict[str, str]) -> None:
    answer = meaning.post("/search", json={"query": query, "mode": "hybrid", **asked}).json()
    assert {name: answer[name] for name in ("searched", "did_you_mean") if name in answer} == told
    if searched := told.get("searched"):
        assert answer["hits"] == ask(meaning, searched)["hits"]
        assert answer["timings_ms"]["spelling"] >= 0
    if asked == PREFIX:
        assert answer.get("completions") == (list(told.values()) or None)


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
