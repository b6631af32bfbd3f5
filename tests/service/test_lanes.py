"""Light searches are answered in the event loop, everything else in threads."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep, thread_time
from typing import Any

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.app import create_app
from lightretriever.service.http.lanes import LIGHT_S, STALL_S, Recent, is_light
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import live, warm
from tests.support.legs import GatedLeg
from tests.support.waiting import wait_until

NUMBERS = {"not": {"or": [{"field": "year", "in": list(range(30))}] * 2}}


@pytest.mark.parametrize(
    ("fields", "light"),
    [
        ({}, True),
        ({"k": 100}, True),
        ({"mode": "dense"}, True),
        ({"mode": "sparse", "fields": []}, True),
        ({"fusion": {"method": "rrf"}}, True),
        ({"filter": {"field": "year", "gte": 2000}}, True),
        ({"query": "q" * 500}, True),
        ({"explain": False, "snippets": None, "facets": []}, True),
        ({"k": 101}, False),
        ({"offset": 95}, False),
        ({"candidates": 1000}, False),
        ({"filter": NUMBERS}, False),
        ({"query": "q" * 501}, False),
        ({"query": None, "filter": {"field": "year", "gte": 2000}}, False),
        ({"query": None, "like": "doc-50"}, False),
        ({"explain": True}, False),
        ({"snippets": {}}, False),
        ({"spelling": "suggest"}, False),
        ({"prefix": True}, False),
        ({"facets": ["source"]}, False),
        ({"facet_ranges": {"year": [2000]}}, False),
        ({"group_by": "source"}, False),
        ({"boosts": [{"field": "year", "weight": 1.0, "scale": 5.0}]}, False),
        ({"sort": {"field": "year"}}, False),
        ({"rerank": True}, False),
    ],
)
def test_which_searches_are_light(engine: SearchEngine, fields: dict[str, Any], light: bool) -> None:
    assert is_light(SearchRequest.model_validate({"query": "music", **fields}), engine) is light


def test_with_a_reranking_model_only_searches_without_it_are_light(tiny_bundle: Bundle) -> None:
    with SearchEngine.open(tiny_bundle, Settings(rerank_url="http://127.0.0.1:9/rerank")) as engine:
        assert not is_light(SearchRequest(query="music"), engine)
        assert is_light(SearchRequest(query="music", rerank=False), engine)


def test_the_time_of_late_searches_counts() -> None:
    def busy(seconds: float) -> None:
        until = thread_time() + seconds
        while thread_time() < until:
            pass

    recent = Recent()

    def measure(work: Callable[[], object]) -> None:
        recent.measure(work, StageClock())

    assert recent.seconds > LIGHT_S  # nothing is known
    measure(lambda: None)
    assert recent.seconds < LIGHT_S
    measure(lambda: busy(0.2))
    assert recent.seconds > LIGHT_S
    for _ in range(100):
        measure(lambda: sleep(0.001))  # only the processor's time counts
    assert recent.seconds < LIGHT_S
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 // 0)
    measure(lambda: sleep(STALL_S))  # but not for a disk that doesn't answer
    assert recent.seconds > LIGHT_S
    measure(lambda: None)
    assert recent.seconds < LIGHT_S


@pytest.mark.usefixtures("handed_over")
def test_the_time_of_a_leg_in_another_thread_counts(tiny_bundle: Bundle) -> None:
    with warm(tiny_bundle, Settings(deadline_ms=60_000, warm_up_queries=1)) as engine:
        clock, recent = StageClock(), Recent()
        recent.measure(lambda: engine.answer(SearchRequest(query="music"), clock), clock)
        assert clock.handed_s > 0
        recent.measure(lambda: None, clock)
        assert recent.seconds > clock.handed_s


def test_while_a_call_hangs_no_search_is_light(tiny_bundle: Bundle, gate: threading.Event) -> None:
    with warm(tiny_bundle, Settings(deadline_ms=60_000, warm_up_queries=1)) as engine:
        call = engine.submit(gate.wait)
        wait_until(lambda: call.started > 0)
        assert is_light(SearchRequest(query="music"), engine)  # it is not late
        assert call.give_up()
        assert not is_light(SearchRequest(query="music"), engine)
        gate.set()
        wait_until(lambda: is_light(SearchRequest(query="music"), engine))


@pytest.fixture
def slow(tiny_bundle: Bundle, gate: threading.Event) -> Iterator[tuple[SearchEngine, GatedLeg]]:
    """An engine whose dense leg lets searches for many candidates wait."""
    settings = Settings(deadline_ms=60_000, warm_up_queries=1, search_threads=2)
    with warm(tiny_bundle, settings) as engine:
        leg = GatedLeg(engine.parts.backends.legs["dense"], gate, settings.candidates)
        engine.parts.backends.legs["dense"] = leg
        yield engine, leg
        gate.set()


def test_light_searches_wait_for_no_others(slow: tuple[SearchEngine, GatedLeg]) -> None:
    engine, leg = slow
    app, wide = create_app(engine), {"query": "music", "k": 1000}

    with live(app) as url, ThreadPoolExecutor(4) as pool:

        def ask(path: str, body: dict[str, Any]) -> httpx2.Response:
            return httpx2.post(url + path, json=body, timeout=90)

        assert ask("/search", {"query": "music"}).status_code == 200  # in a thread: nothing is known
        app.state.recent("default").seconds = 0.0
        busy = [pool.submit(ask, "/search", wide), pool.submit(ask, "/search/batch", {"searches": [wide] * 2})]
        for _ in range(2):
            assert leg.entered.acquire(timeout=60)
        plain = [ask("/search", {"query": "music"}) for _ in range(5)]  # all threads are taken
        plain.append(httpx2.get(f"{url}/search?q=music", timeout=90))
        assert {answer.status_code for answer in plain} == {200}
        leg.gate.set()
        assert [future.result().status_code for future in busy] == [200, 200]
        assert app.state.admission.admitted == 0
