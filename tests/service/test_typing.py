"""Queries as they are typed: misspelt, not typed to their end, in another number."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from lightretriever import SearchClient
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine

from tests.service.conftest import SETTINGS
from tests.service.process import serving
from tests.support.meaning import make_meaningful_bundle

FUSION = {"fusion": {"method": "linear", "weights": {"dense": 0.4, "sparse": 0.6}}}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    bundle = make_meaningful_bundle(tmp_path_factory.mktemp("typing") / "bundle")
    with SearchEngine.open(bundle, SETTINGS) as engine:
        engine.warm_up()
        with TestClient(create_app(engine)) as client:
            yield client


def ask(client: TestClient, query: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/search", json={"query": query, "k": 1, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_better_spelling_is_suggested(words: TestClient) -> None:
    answer = ask(words, "Harvest honney, from Beekepers", spelling="suggest")
    assert answer["did_you_mean"] == "Harvest honey, from Beekeepers"
    assert "searched" not in answer
    assert answer["timings_ms"]["spelling"] >= 0


def test_a_better_spelling_is_searched_for(words: TestClient) -> None:
    answer = ask(words, "bycicle tyer", spelling="auto", snippets={}, explain=True)
    assert answer["searched"] == "bicycle tyre"
    assert "did_you_mean" not in answer
    right = ask(words, "bicycle tyre", snippets={}, explain=True)
    assert answer["hits"] == right["hits"]
    assert answer["hits"][0]["fields"]["title"] == "Repairing bicycles"


@pytest.mark.parametrize(
    "query",
    [
        "bicycle tyre",
        "bicycles",
        "the tyres of bicycle",
        "bababa",
        "B2B 1999 c++",
        "…",
        "🙂 oven",
        "HONNEY honNey",
        "honney-19",
        "a@honney.org",
    ],
)
def test_words_that_are_known_stay(words: TestClient, query: str) -> None:
    answer = words.post("/search", json={"query": query, "spelling": "auto", "mode": "hybrid"}).json()
    assert not {"searched", "did_you_mean"} & answer.keys()


@pytest.mark.parametrize(
    ("query", "searched"),
    [("punct", "punctured"), ("the com", "the compass"), ("Mountain", "Mountains"), ("RENN", "Rennet")],
)
def test_the_last_word_is_completed(words: TestClient, query: str, searched: str) -> None:
    answer = ask(words, query, prefix=True)
    assert answer["searched"] == searched
    assert answer["hits"] == ask(words, searched)["hits"]


def test_the_last_word_stands_for_all_that_begin_so(words: TestClient) -> None:
    """Two forms of cheese, and one of each of the others; of equals, the first by the alphabet."""
    answer = ask(words, "ch", prefix=True, k=10, mode="sparse", explain=True)
    assert answer["searched"] == "cheese"
    assert answer["completions"] == ["cheese", "chain", "chess"]
    titles = [hit["fields"]["title"] for hit in answer["hits"]]
    assert titles[0] == "Making cheese"
    assert set(titles[1:]) == {"Repairing bicycles", "Playing chess"}
    weights = {word["word"]: word["terms"][0]["weight"] for word in answer["hits"][0]["explanation"]["words"]}
    assert weights == pytest.approx({"cheese": 1.0, "chain": 0.25, "chess": 0.25})
    behind = ask(words, "Oil ch", prefix=True, spelling="auto")
    assert {"Oil cheese", "Oil chain", "Oil chess"} == {*behind["completions"]}


def test_a_word_may_be_whole_or_not(words: TestClient) -> None:
    answer = ask(words, "Compas", prefix=True)
    assert (answer["searched"], answer["completions"]) == ("Compass", ["Compass"])
    assert "completions" not in ask(words, "compass", prefix=True)
    assert "completions" not in ask(words, "compass")


def test_a_stop_word_is_not_completed(words: TestClient) -> None:
    assert ask(words, "tell the", prefix=True)["hits"] == ask(words, "tell the")["hits"]


@pytest.mark.parametrize("query", ["bees", "mend ", "mend,", "c", "bees 12", "bees zz", "e-hon"])
def test_what_is_no_beginning_of_a_word_stays(words: TestClient, query: str) -> None:
    answer = words.post("/search", json={"query": query, "prefix": True, "mode": "hybrid"}).json()
    assert "searched" not in answer


def test_both_together(words: TestClient) -> None:
    assert ask(words, "ripe chesee cel", prefix=True, spelling="auto")["searched"] == "ripe cheese cellar"
    answer = ask(words, "ripe chesee cel", prefix=True, spelling="suggest")
    assert (answer["searched"], answer["did_you_mean"]) == ("ripe chesee cellar", "ripe cheese cellar")


@pytest.mark.parametrize(
    ("query", "title"), [("dinghy sailed", "Sailing dinghies"), ("tomato plant", "Growing tomatoes")]
)
def test_another_number_of_a_word_is_found_by_words(words: TestClient, query: str, title: str) -> None:
    for mode in ("sparse", "hybrid"):
        answer = ask(words, query, mode=mode, **(FUSION if mode == "hybrid" else {}))
        assert answer["hits"][0]["fields"]["title"] == title


def test_a_batch_takes_it_for_each_search(words: TestClient) -> None:
    searches = [{"query": "honney", "spelling": "auto"}, {"query": "honey"}]
    first, second = words.post("/search/batch", json={"searches": searches}).json()["results"]
    assert first["searched"] == "honey"
    assert first["hits"] == second["hits"]


def test_a_bundle_without_spellings_refuses(tmp_path: Path) -> None:
    bundle = make_meaningful_bundle(tmp_path / "bare", vocabulary="tokens")
    with SearchEngine.open(bundle, SETTINGS) as engine, TestClient(create_app(engine)) as client:
        assert "spelling" not in client.get("/info").json()
        answer = client.post("/search", json={"query": "musik", "spelling": "auto", "prefix": True})
        wrong = client.post("/search", json={"query": "musik", "spelling": "always"})
    assert answer.status_code == 422
    errors = answer.json()["errors"]
    assert [error["field"] for error in errors] == ["spelling", "prefix"]
    assert all("build it with `index.vocabulary: words`" in error["message"] for error in errors)
    assert wrong.status_code == 422


def test_the_client_has_it(tmp_path_factory: pytest.TempPathFactory) -> None:
    bundle = make_meaningful_bundle(tmp_path_factory.mktemp("client") / "bundle")
    with serving(bundle.path, {"LIGHTRETRIEVER_LOG_LEVEL": "error"}) as url, SearchClient(url) as client:
        assert client.info().spelling
        answer = client.search("bycicle ty", spelling="suggest", prefix=True)
        assert (answer.searched, answer.did_you_mean) == ("bycicle tyre", "bicycle tyre")
        assert answer.matched in ("weak", "strong")
