"""Mode bm25: the ranking of plain BM25 over the same documents, with everything else that a search can do."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fastapi.testclient import TestClient
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.bm25 import WordIndex, build_word_index
from lightretriever.artifacts.sparse.index import DocumentSet
from lightretriever.service.backends.base import EncodedQuery, Leg, ScoredDocuments
from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import LegName
from lightretriever.service.search.engine import SearchEngine

from tests.service.conftest import SETTINGS
from tests.support.legs import WrappedLeg
from tests.support.tiny import make_tiny_bundle, tiny_documents

QUERIES = ["play music from the terminal", "searching documents", "Zażółć 🎵", "ελληνικά", "chess OR (games)", "music"]
COUNT = 120


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WordIndex]:
    path = tmp_path_factory.mktemp("words") / "lucene"
    documents = tiny_documents()
    build_word_index(path, [one.id for one in documents], [one.full_text for one in documents])
    with WordIndex.open(path) as index:
        yield index


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service with a bundle that has no words."""
    bundle = make_tiny_bundle(tmp_path_factory.mktemp("bare") / "bundle", documents=20)
    with SearchEngine.open(bundle, SETTINGS) as engine:
        engine.warm_up()
        with TestClient(create_app(engine)) as client:
            yield client


def ask(client: TestClient, **fields: Any) -> dict[str, Any]:
    answer = client.post("/search", json={"query": QUERIES[0], "mode": "bm25", **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def problem(client: TestClient, **fields: Any) -> tuple[int, str, list[dict[str, Any]]]:
    answer = client.post("/search", json={"query": QUERIES[0], "mode": "bm25", **fields})
    return answer.status_code, answer.json()["kind"], answer.json()["errors"]


@pytest.mark.parametrize("text", QUERIES)
def test_hits_are_those_of_bm25_on_the_words(client: TestClient, words: WordIndex, text: str) -> None:
    answer = ask(client, query=text, k=COUNT, candidates=COUNT)
    hits = answer["hits"]
    assert [(hit["id"], hit["score"]) for hit in hits] == words.search(text, COUNT)
    assert hits
    assert [hit["rank"] for hit in hits] == list(range(1, len(hits) + 1))
    assert {(hit["dense"], hit["sparse"]) for hit in hits} == {(None, None)}
    assert (answer["mode"], answer["degraded"], answer["candidates"]) == ("bm25", [], len(hits))
    taken = {stage for stage, ms in answer["timings_ms"].items() if ms is not None}
    assert taken == {"bm25", "fuse", "fetch", "total"}


def test_pages_are_parts_of_one_ranking(client: TestClient, words: WordIndex) -> None:
    expected = [name for name, _ in words.search(QUERIES[0], 30)]
    pages = [ask(client, k=7, offset=offset, candidates=30)["hits"] for offset in range(0, 28, 7)]
    assert [hit["id"] for page in pages for hit in page] == expected[:28]
    assert [hit["rank"] for page in pages for hit in page] == list(range(1, 29))


@pytest.mark.parametrize("text", ["the of a", "…", "🙂", "unheard"])
def test_a_text_without_known_words_finds_nothing(client: TestClient, text: str) -> None:
    answer = ask(client, query=text, snippets={}, facets=[])
    assert (answer["hits"], answer["candidates"], answer["degraded"]) == ([], 0, [])


def test_the_query_is_not_encoded(fresh_engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh_engine.warm_up()
    monkeypatch.setattr(fresh_engine.parts.encoder, "encode", None)
    with TestClient(create_app(fresh_engine)) as client:
        assert len(ask(client)["hits"]) == 10


def test_snippets_and_fields(client: TestClient) -> None:
    answer = ask(client, query="music terminal", fields=["year"], snippets={"length": 40})
    first = answer["hits"][0]
    assert list(first["fields"]) == ["year"]
    marked = [
        snippet["text"][start:end].lower()
        for hit in answer["hits"]
        for snippet in hit["snippets"].values()
        for start, end in snippet["marks"]
    ]
    assert {"music", "terminal"} == set(marked)


def test_the_snippet_is_the_part_with_most_words_of_the_query(client: TestClient) -> None:
    answer = ask(client, query="syntax highlighting plugins", k=1, snippets={"fields": ["text"], "length": 45})
    (hit,) = answer["hits"]
    snippet = hit["snippets"]["text"]
    assert hit["id"] == "editor"
    assert snippet["start"] > 0
    assert {snippet["text"][start:end] for start, end in snippet["marks"]} == {"syntax", "highlighting", "plugins"}


def test_a_batch_has_all_modes_side_by_side(client: TestClient) -> None:
    modes = client.get("/info").json()["modes"]
    assert modes == ["hybrid", "dense", "sparse", "bm25"]
    searches = [{"query": QUERIES[0], "mode": mode} for mode in modes]
    results = client.post("/search/batch", json={"searches": searches}).json()["results"]
    assert [result["mode"] for result in results] == modes
    alone = [client.post("/search", json=search).json()["hits"] for search in searches]
    assert [result["hits"] for result in results] == alone


def test_what_it_can_not_do_is_told_with_a_remedy(client: TestClient) -> None:
    status, kind, errors = problem(client, explain=True, terms=[{"text": "video", "weight": -1}])
    assert (status, kind) == (422, "invalid_request")
    assert [(error["field"], error["value"]) for error in errors] == [("explain", True), ("terms", 1)]
    assert all("leave it out, or search in another mode" in error["message"] for error in errors)
    body = {"searches": [{"query": "a"}, {"query": "a", "mode": "bm25", "explain": True}]}
    (error,) = client.post("/search/batch", json=body).json()["errors"]
    assert error["field"] == "searches.1.explain"


def test_a_bundle_without_words_says_so(bare: TestClient) -> None:
    assert bare.get("/info").json()["modes"] == ["hybrid", "dense", "sparse"]
    status, kind, (error,) = problem(bare, explain=True)
    assert (status, kind) == (422, "invalid_request")
    assert (error["field"], error["value"]) == ("mode", "bm25")
    assert "build it with `index.words: true` to have them; it has the modes hybrid, dense, sparse" in error["message"]
    assert bare.post("/search", json={"query": "music"}).json()["hits"]


class Broken(WrappedLeg):
    """Waits for the gate, and fails then."""

    def __init__(self, leg: Leg, gate: threading.Event) -> None:
        super().__init__(leg)
        self._gate = gate

    def search(self, query: EncodedQuery, count: int, among: DocumentSet | None = None) -> ScoredDocuments:
        self._gate.wait()
        raise OSError("broken leg")

    def scores(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        raise AssertionError("nobody asks for these")

    shares = scores


def test_a_failure_is_an_error_and_the_other_modes_go_on(fresh_engine: SearchEngine) -> None:
    gate = threading.Event()
    fresh_engine.warm_up()
    fresh_engine.parts.legs["bm25"] = Broken(fresh_engine.parts.legs["bm25"], gate)
    with TestClient(create_app(fresh_engine)) as client:
        assert problem(client, deadline_ms=200)[:2] == (504, "deadline_exceeded")
        assert problem(client, deadline_ms=200, allow_partial=False)[:2] == (504, "deadline_exceeded")
        others: tuple[LegName, ...] = ("dense", "sparse")
        for mode in ("hybrid", *others):  # all of its threads are held
            answer = client.post("/search", json={"query": "music", "mode": mode}).json()
            assert (len(answer["hits"]), answer["degraded"]) == (10, [])
        assert fresh_engine.parts.executor.lanes["bm25"].abandoned == 2
        gate.set()
        assert problem(client)[:2] == (500, "search_failed")


def test_its_time_is_a_stage_of_the_metrics(fresh_engine: SearchEngine) -> None:
    with TestClient(create_app(fresh_engine)) as client:
        ask(client)
    value = fresh_engine.metrics.registry.get_sample_value
    assert value("lightretriever_stage_seconds_count", {"stage": "bm25", "backend": "lucene"}) == 1
    assert value("lightretriever_stage_seconds_count", {"stage": "sparse", "backend": "lucene"}) is None


def test_the_warm_up_searches_it_too(tiny_bundle: Bundle) -> None:
    with SearchEngine.open(tiny_bundle, SETTINGS) as engine:
        engine.parts.legs["bm25"] = Broken(engine.parts.legs["bm25"], gate := threading.Event())
        gate.set()
        with pytest.raises(Exception, match="The leg bm25 failed"):
            engine.warm_up()


def test_bundles_without_words_are_what_they_were(tmp_path: Path, tiny_bundle: Bundle) -> None:
    without = make_tiny_bundle(tmp_path / "bundle", documents=20)
    assert b'"words"' not in without.manifest.to_bytes()
    assert b'"words": true' in tiny_bundle.manifest.to_bytes()
