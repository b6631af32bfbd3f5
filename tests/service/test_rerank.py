"""The reranking model: a real HTTP server that speaks both forms, and scores by length."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import DeadlineError, InvalidRequestError, SearchFailedError
from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from tests.client.scripted import Scripted, answer
from tests.service.conftest import SETTINGS
from tests.service.live import client_of_folder
from tests.service.process import flip
from tests.service.test_swap import reload
from tests.support.tiny import TinyDocument, make_tiny_bundle
from tests.support.waiting import free_port, wait_until
from tests.support.wordings import raises

Answer = Callable[[dict[str, Any]], tuple[int, Any]]
KEY, NAME = "rerank-key", "BAAI/bge-reranker-base"


def by_length(request: dict[str, Any]) -> tuple[int, Any]:
    scores = [{"index": place, "score": 1 / len(text)} for place, text in enumerate(request["texts"])]
    return 200, sorted(scores, key=lambda one: -one["score"])


def in_the_form_of_cohere(request: dict[str, Any]) -> tuple[int, Any]:
    """As vLLM answers: with the texts, the best first, and no more than `top_n`."""
    if set(request) != {"model", "query", "documents", "top_n"} or request["model"] != NAME:
        return 400, {"error": {"message": "the model does not exist", "code": 400}}
    results: list[dict[str, Any]] = [
        {"index": place, "document": {"text": text}, "relevance_score": 1 / len(text)}
        for place, text in enumerate(request["documents"])
    ]
    results.sort(key=lambda one: -one["relevance_score"])
    return 200, {"id": "rerank-1", "model": NAME, "usage": {"total_tokens": 9}, "results": results[: request["top_n"]]}


class Model:
    """A reranking model whose answers a test chooses, and the requests that it got."""

    def __init__(self) -> None:
        self.url = ""
        self.answer: Answer = by_length
        self.asked: list[dict[str, Any]] = []

    def step(self, handler: BaseHTTPRequestHandler) -> None:
        assert (handler.path, handler.headers["authorization"]) == ("/rerank", f"Bearer {KEY}")
        self.asked.append(json.loads(vars(handler)["body"]))
        status, content = self.answer(self.asked[-1])
        answer(content, status, **({"location": content["location"]} if status == 302 else {}))(handler)


@pytest.fixture
def model() -> Iterator[Model]:
    model = Model()
    with Scripted(model.step) as server:
        model.url = f"{server.url}/rerank"
        yield model


def opened(bundle: Bundle, model: Model, **settings: Any) -> AbstractContextManager[SearchEngine]:
    update = {"rerank_url": model.url, "rerank_api_key": KEY, **settings}
    return SearchEngine.open(bundle, SETTINGS.model_copy(update=update))


@pytest.fixture
def engine_with_model(tiny_bundle: Bundle, model: Model) -> Iterator[SearchEngine]:
    with opened(tiny_bundle, model, rerank_top=7, deadline_ms=10_000) as engine:
        yield engine


@pytest.fixture
def engine_with_named_model(tiny_bundle: Bundle, model: Model) -> Iterator[SearchEngine]:
    with opened(tiny_bundle, model, rerank_model=NAME, rerank_characters=20) as engine:
        yield engine


def search(engine: SearchEngine, **fields: Any) -> Any:
    return engine.search(SearchRequest.model_validate({"query": "play music", "candidates": 30, **fields}))


def test_a_service_gets_ready_answers_and_takes_a_new_version_while_the_model_is_down(
    tiny_bundle: Bundle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    current, ready = tmp_path / "current", threading.Event()
    current.symlink_to(make_tiny_bundle(tmp_path / "old", documents=20).path)
    settings = SETTINGS.model_copy(update={"rerank_url": f"http://127.0.0.1:{free_port()}/rerank", "watch_s": 0})
    with client_of_folder(current, settings, on_ready=ready.set) as client:
        assert ready.wait(60)
        assert not caplog.records
        answer = client.post("/search", json={"query": "play music"}).json()
        assert (len(answer["hits"]), answer["degraded"]) == (10, ["rerank"])
        assert client.get("/readyz").status_code == 200
        flip(current, tiny_bundle.path)
        assert reload(client)
        assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("form", ["engine_with_model", "engine_with_named_model"])
def test_the_first_candidates_are_in_the_models_order(request: pytest.FixtureRequest, model: Model, form: str) -> None:
    engine: SearchEngine = request.getfixturevalue(form)
    named = form == "engine_with_named_model"
    top, longest, field = (20, 20, "documents") if named else (7, 10_000, "texts")
    model.answer = in_the_form_of_cohere if named else by_length
    before = search(engine, k=30, rerank=False).hits
    answer = search(engine, k=30)
    after = answer.hits
    [asked] = model.asked
    assert (answer.degraded, asked["query"], asked.get("top_n", top)) == ([], "play music", top)
    texts = [f"{hit.fields['title']} {hit.fields['text']}".strip()[:longest] for hit in before[:top]]
    assert [text.strip() for text in asked[field]] == [text.strip() for text in texts]
    assert after[top:] == before[top:]
    scores = {hit.id: 1 / len(text) for hit, text in zip(before, asked[field], strict=False)}
    assert [hit.rerank for hit in after[:top]] == sorted(scores.values(), reverse=True)
    assert {hit.id: hit.rerank for hit in after[:top]} == scores
    assert {hit.id: hit.score for hit in after} == {hit.id: hit.score for hit in before}
    assert all(hit.rerank is None for hit in (*after[top:], *before))


def test_pages_and_groups_have_the_models_order(engine_with_model: SearchEngine, model: Model) -> None:
    every = search(engine_with_model, k=30).hits
    pages = [search(engine_with_model, k=5, offset=offset).hits for offset in (0, 5, 10, 15)]
    assert [hit for page in pages for hit in page] == every[:20]
    grouped = search(engine_with_model, k=3, group_by="year").hits
    first_of = {hit.fields["year"]: hit.id for hit in reversed(every)}
    assert [hit.id for hit in grouped] == [hit.id for hit in every if first_of[hit.fields["year"]] == hit.id][:3]


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ("engine_with_model", (500, b"out of memory")),
        ("engine_with_model", (200, b"no JSON")),
        ("engine_with_model", (200, {"error": "x"})),
        ("engine_with_model", (200, [{"index": 0, "score": 1}] * 7)),
        ("engine_with_model", (200, [{"index": place, "score": None} for place in range(7)])),
        ("engine_with_model", (200, [{"index": place, "score": math.nan} for place in range(7)])),
        ("engine_with_model", (200, [{"index": place, "score": 1} for place in range(8)])),
        ("engine_with_model", (302, {"location": "/rerank"})),  # which would get the key
        ("engine_with_named_model", by_length({"texts": ["x"] * 20})),
        ("engine_with_named_model", (200, {"results": None})),
        ("engine_with_named_model", (200, {"results": [{"index": place, "score": 1} for place in range(20)]})),
    ],
)
def test_a_model_that_fails_is_named_and_the_order_stays(
    request: pytest.FixtureRequest, model: Model, form: str, answer: tuple[int, Any]
) -> None:
    engine: SearchEngine = request.getfixturevalue(form)
    model.answer = lambda _: answer
    before = search(engine, rerank=False)
    after = search(engine)
    assert after.degraded == ["rerank"]
    assert after.hits == before.hits
    with raises(SearchFailedError):
        search(engine, allow_partial=False)
    assert len(model.asked) == 2


def test_a_hanging_model_holds_nobody(engine_with_model: SearchEngine, model: Model, gate: threading.Event) -> None:
    model.answer = lambda request: (gate.wait(30), by_length(request))[1]
    body = {"query": "play music", "deadline_ms": 6000}
    with TestClient(create_app(engine_with_model)) as client, ThreadPoolExecutor(12) as clients:
        answers = list(clients.map(lambda _: client.post("/search", json=body), range(12)))
        assert [answer.status_code for answer in answers] == [200] * 12
        assert all(answer.json()["degraded"] == ["rerank"] for answer in answers)
    assert b'lightretriever_degraded_total{leg="rerank",reason="late"}' in engine_with_model.metrics.text()
    with raises(DeadlineError):
        search(engine_with_model, deadline_ms=1500, allow_partial=False)
    gate.set()
    model.answer = by_length
    wait_until(lambda: not search(engine_with_model).degraded)


def test_sorted_candidates_are_not_reranked(tmp_path: Path, model: Model) -> None:
    bundle = make_tiny_bundle(tmp_path / "dated", documents=20, fields={"year": "number"})
    with opened(bundle, model) as engine:
        search(engine, sort={"field": "year"})
        assert not model.asked
        with raises(InvalidRequestError):
            search(engine, sort={"field": "year"}, rerank=True)


def test_info_tells_of_a_model(engine_with_model: SearchEngine, client: TestClient, model: Model) -> None:
    with TestClient(create_app(engine_with_model)) as with_model:
        assert with_model.get("/info").json()["rerank_top"] == 7
        assert with_model.post("/search", json={"query": "music"}).json()["timings_ms"]["rerank"] > 0
    assert "rerank_top" not in client.get("/info").json()


def test_many_candidates_are_sent_in_batches_and_long_texts_are_cut(tmp_path: Path, model: Model) -> None:
    """As text-embeddings-inference wants it by default: 32 texts and 2 MB in a request."""
    documents = [TinyDocument(f"d{number}", "play music", "music " * (3_000 - number), 2000) for number in range(70)]
    bundle = make_tiny_bundle(tmp_path / "long", documents=documents, vocabulary="words")

    def bounded(request: dict[str, Any]) -> tuple[int, Any]:
        if len(request["texts"]) > 32 or len(json.dumps(request)) > 2_000_000:
            return 422, {"error": "batch size"}
        return by_length(request)

    model.answer = bounded
    with opened(bundle, model, rerank_top=70) as engine:
        model.asked.clear()
        found = search(engine, k=70, candidates=70, fields=[])
    assert (found.degraded, len(found.hits)) == ([], 70)
    assert [len(asked["texts"]) for asked in model.asked] == [32, 32, 6]
    assert max(len(text) for asked in model.asked for text in asked["texts"]) == 10_000
    scores = [hit.rerank for hit in found.hits]
    assert scores == sorted(scores, reverse=True)
