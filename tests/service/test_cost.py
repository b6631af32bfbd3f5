"""What requests cost, and that heavy ones wait in a lane of their own."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import SearchClient
from lightretriever.service.errors import OverloadedError, TooCostlyError
from lightretriever.service.http.admission import Admission
from lightretriever.service.http.app import create_app
from lightretriever.service.http.cost import LIGHT, cost_of_batch, cost_of_embeddings, cost_of_encode, cost_of_search
from lightretriever.service.schemas import EmbeddingsRequest, EncodeRequest, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import live, warm
from tests.support.legs import GatedLeg
from tests.support.waiting import wait_until
from tests.support.wordings import raises

DEFAULTS = Settings()
LONG = "word " * 2_000  # 10,000 characters
CHINESE = "打开办公室的咖啡机吧" * 100  # no spaces, so each sign is a word and two terms
NUMBERS = {"not": {"or": [{"field": "year", "in": list(range(90))}] * 11}}


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({}, 1),
        ({"k": 100}, 1),
        ({"k": 101}, 2),
        ({"offset": 150}, 2),
        ({"snippets": {}, "explain": True, "facets": ["source"], "spelling": "auto", "prefix": True}, 1),
        ({"query": "a kettel for blak tea", "spelling": "suggest"}, 1),
        ({"query": "kettel " * 9, "spelling": "auto"}, 4),
        ({"query": f"{'q' * 25} " * 9 + "q" * 41, "spelling": "auto"}, 13),
        ({"query": LONG, "spelling": "auto"}, 21),
        ({"filter": {"field": "year", "gte": 2000}}, 1),
        ({"filter": NUMBERS}, 20),
        ({"query": LONG}, 21),
        ({"terms": [{"text": LONG, "weight": 1.0}]}, 21),
        ({"k": 100, "snippets": {}}, 16),
        ({"k": 100, "snippets": {"fields": ["text"] * 20}}, 7),
        ({"k": 10, "group_by": "path", "group_size": 10, "snippets": {}}, 16),
        ({"query": LONG, "k": 100, "snippets": {}}, 51),
        ({"query": "one two three", "k": 100, "explain": True}, 4),
        ({"k": 1000, "diversity": 0.5}, 60),
        ({"query": None, "sort": {"field": "year"}, "k": 200}, 2),
        ({"query": None, "sort": {"field": "year"}, "facet_ranges": {"year": list(range(100))}}, 21),
        ({"facet_ranges": {"year": list(range(100))}}, 1),
        ({"query": CHINESE}, 7),
        ({"query": CHINESE, "k": 1, "explain": True}, 17),
    ],
)
def test_a_search_costs_what_it_asks_for(fields: dict[str, Any], cost: int) -> None:
    request = SearchRequest.model_validate({"query": "music", **fields})
    assert cost_of_search(request, DEFAULTS) == cost
    assert cost_of_batch([request] * 3, DEFAULTS) == 3 * cost


def test_texts_cost_their_length() -> None:
    for texts, cost in ((["music"], 1), (["music"] * 65, 2), ([LONG], 7), ([LONG] * 64, 427), ([CHINESE] * 4, 9)):
        assert cost_of_embeddings(EmbeddingsRequest(input=texts, model="default"), DEFAULTS) == cost
    assert cost_of_encode(EncodeRequest(text="music")) == 1
    assert cost_of_encode(EncodeRequest(text=LONG)) == 21
    assert cost_of_encode(EncodeRequest(text=CHINESE)) == 7


def test_heavy_requests_share_what_they_may_cost() -> None:
    admission = Admission(2, 8, 20)
    with admission.enter_heavy(12), admission.enter_heavy(8):
        with raises(OverloadedError, naming="max_cost"), admission.enter_heavy(9):
            pass
        with raises(TooCostlyError, naming="max_cost"), admission.enter_heavy(21):
            pass
        admission.check()  # others have their own places
    assert admission.heavy == admission.taken == 0


@pytest.fixture
def slow(tiny_bundle: Bundle, gate: threading.Event) -> Iterator[tuple[SearchEngine, GatedLeg]]:
    """An engine whose dense leg lets searches for many candidates wait."""
    settings = Settings(deadline_ms=60_000, warm_up_queries=1, search_threads=2, max_cost=30)
    with warm(tiny_bundle, settings) as engine:
        leg = GatedLeg(engine.parts.backends.legs["dense"], gate, DEFAULTS.candidates)
        engine.parts.backends.legs["dense"] = leg
        yield engine, leg
        gate.set()


def test_heavy_requests_leave_the_threads_of_others_alone(slow: tuple[SearchEngine, GatedLeg]) -> None:
    engine, leg = slow
    app, heavy = create_app(engine), {"query": "music", "k": 1000}

    with live(app) as url, ThreadPoolExecutor(4) as pool:

        def ask(path: str, body: dict[str, Any]) -> httpx2.Response:
            return httpx2.post(url + path, json=body, timeout=90)

        busy = [pool.submit(ask, "/search", heavy), pool.submit(ask, "/search/batch", {"searches": [heavy] * 2})]
        assert leg.entered.acquire(timeout=60)
        wait_until(lambda: app.state.admission.heavy == 30)
        plain = [ask("/search", {"query": "music"}) for _ in range(5)]
        assert {answer.status_code for answer in plain} == {200}
        assert ask("/search/batch", {"searches": [{"query": "music"}] * LIGHT}).status_code == 200
        refused = ask("/search", heavy)
        assert (refused.status_code, refused.json()["kind"]) == (503, "overloaded")
        assert refused.headers["retry-after"] == "1"
        assert "max_cost" in refused.json()["detail"]
        assert httpx2.get(f"{url}/readyz", timeout=60).status_code == 200
        leg.gate.set()
        assert [future.result().status_code for future in busy] == [200, 200]
        assert app.state.admission.heavy == app.state.admission.taken == 0
        assert len(ask("/search", heavy).json()["hits"]) == 120


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/search", {"query": "music", "k": 1000, "snippets": {}}),
        ("/search/batch", {"searches": [{"query": "music"}] * 31}),
        ("/v1/embeddings", {"model": "default", "input": ["music " * 1_000] * 10}),
    ],
)
def test_what_costs_too_much_is_told_so(slow: tuple[SearchEngine, GatedLeg], path: str, body: dict[str, Any]) -> None:
    with live(create_app(slow[0])) as url:
        answer = httpx2.post(url + path, json=body, timeout=90)
        assert (answer.status_code, answer.json()["kind"]) == (422, "too_costly")
        assert "at most 30 are possible (max_cost)" in answer.json()["detail"]
        assert httpx2.get(f"{url}/info", timeout=60).json()["limits"]["max_cost"] == 30
        wrong = httpx2.post(f"{url}/search", json={"query": LONG, "task": "none"}, timeout=90).json()
        assert (wrong["kind"], wrong["errors"][0]["field"]) == ("invalid_request", "task")


def test_a_client_asks_for_less_at_once(slow: tuple[SearchEngine, GatedLeg]) -> None:
    with live(create_app(slow[0])) as url, SearchClient(url) as client:
        answers = list(client.search_many(["music"] * 100, batch_size=64, concurrency=1))
        assert [len(answer.hits) for answer in answers] == [10] * 100
