"""Which requests are answered where, and how many: light searches in the event loop, everything else in threads; more
than there is room for are refused cleanly, and it is over when it is over."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep, thread_time
from typing import Any

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import OverloadedError
from lightretriever.service.http.app import create_app
from lightretriever.service.http.handling import LIGHT_S, STALL_S, Admission, Recent, is_light
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import live, warm
from tests.support.legs import GatedLeg
from tests.support.waiting import wait_until
from tests.support.wordings import raises

WORKING, WAITING, CLIENTS = 2, 3, 24
SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=1, search_threads=WORKING, max_waiting=WAITING)
NUMBERS = {"not": {"or": [{"field": "year", "in": list(range(30))}] * 2}}
LIGHT: list[dict[str, Any]] = [
    *({}, {"k": 100}, {"mode": "dense"}, {"mode": "sparse", "fields": []}, {"fusion": {"method": "rrf"}}),
    *({"filter": {"field": "year", "gte": 2000}}, {"query": "q" * 500}),
    {"explain": False, "snippets": None, "facets": []},
]
HEAVY: list[dict[str, Any]] = [
    *({"k": 101}, {"offset": 95}, {"candidates": 1000}, {"filter": NUMBERS}, {"query": "q" * 501}),
    *({"query": None, "filter": {"field": "year", "gte": 2000}}, {"query": None, "like": "doc-50"}),
    *({"explain": True}, {"snippets": {}}, {"spelling": "suggest"}, {"prefix": True}, {"facets": ["source"]}),
    *({"facet_ranges": {"year": [2000]}}, {"group_by": "source"}, {"sort": {"field": "year"}}, {"rerank": True}),
    {"boosts": [{"field": "year", "weight": 1.0, "scale": 5.0}]},
]


@pytest.fixture
def narrow(tiny_bundle: Bundle) -> Iterator[SearchEngine]:
    with warm(tiny_bundle, SETTINGS) as engine:
        yield engine


def search(url: str, **fields: object) -> httpx2.Response:
    return httpx2.post(f"{url}/search", json={"query": "music", **fields}, timeout=90)


def test_which_searches_are_light(engine: SearchEngine) -> None:
    for fields in (*LIGHT, *HEAVY):
        request = SearchRequest.model_validate({"query": "music", **fields})
        assert is_light(request, engine) is (fields in LIGHT), fields


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
def test_the_time_of_a_leg_in_another_thread_counts(narrow: SearchEngine) -> None:
    clock, recent = StageClock(), Recent()
    recent.measure(lambda: narrow.answer(SearchRequest(query="music"), clock), clock)
    assert clock.handed_s > 0
    recent.measure(lambda: None, clock)
    assert recent.seconds > clock.handed_s


def test_while_a_call_hangs_no_search_is_light(narrow: SearchEngine, gate: threading.Event) -> None:
    music, call = SearchRequest(query="music"), narrow.submit(gate.wait)
    wait_until(lambda: call.started > 0)
    assert is_light(music, narrow)  # it is not late
    assert call.give_up()
    assert not is_light(music, narrow)
    gate.set()
    wait_until(lambda: is_light(music, narrow))


def test_light_searches_wait_for_no_others(narrow: SearchEngine, gate: threading.Event) -> None:
    """The dense leg lets searches for many candidates wait."""
    wide = {"query": "music", "k": 1000}

    def ask(path: str, body: dict[str, Any]) -> httpx2.Response:
        return httpx2.post(url + path, json=body, timeout=90)

    with ThreadPoolExecutor(4) as pool:
        leg = GatedLeg(narrow, "dense", gate, SETTINGS.candidates)
        with live(app := create_app(narrow)) as url:
            assert search(url).status_code == 200  # in a thread: nothing is known
            app.state.recent["default"].seconds = 0.0
            busy = [pool.submit(ask, "/search", wide), pool.submit(ask, "/search/batch", {"searches": [wide] * 2})]
            for _ in range(2):
                assert leg.entered.acquire(timeout=60)
            plain = [search(url) for _ in range(5)]  # all threads are taken
            plain.append(httpx2.get(f"{url}/search?q=music", timeout=90))
            assert {answer.status_code for answer in plain} == {200}
            leg.gate.set()
            assert [future.result().status_code for future in busy] == [200, 200]
            assert app.state.admission.admitted == 0


def test_what_is_too_much_is_refused_and_the_rest_is_answered(narrow: SearchEngine, gate: threading.Event) -> None:
    leg = GatedLeg(narrow, "dense", gate)
    refused = threading.Semaphore(0)

    def ask(url: str) -> httpx2.Response:
        answer = search(url)
        if answer.status_code != 200:
            refused.release()
        return answer

    with live(create_app(narrow)) as url, ThreadPoolExecutor(CLIENTS) as pool:
        asked = [pool.submit(ask, url) for _ in range(CLIENTS)]
        # Those too many are answered while all others still wait.
        for _ in range(CLIENTS - WORKING - WAITING):
            assert refused.acquire(timeout=60)
        assert leg.calls <= WORKING
        for path in ("/livez", "/readyz", "/metrics", "/info", "/", "/openapi.json"):
            assert httpx2.get(url + path, timeout=60).status_code == 200
        refusals = [httpx2.get(f"{url}/documents/music", timeout=60), search(url, query="", k="neither is looked at")]
        for path in ("/encode", "/search/batch"):
            refusals.append(httpx2.post(url + path, json={}, timeout=60))
        for refusal in refusals:
            problem = refusal.json()
            assert (refusal.status_code, problem["kind"], refusal.headers["retry-after"]) == (503, "overloaded", "1")
            assert "max_waiting" in problem["detail"]
        gate.set()
        answers = [future.result() for future in asked]
        assert Counter(answer.status_code for answer in answers) == {
            200: WORKING + WAITING,
            503: CLIENTS - WORKING - WAITING,
        }
        assert all(len(answer.json()["hits"]) == 10 for answer in answers if answer.status_code == 200)
        assert search(url).status_code == 200  # at once
        found = narrow.metrics.registry.get_sample_value("lightretriever_errors_total", {"kind": "overloaded"})
        assert found == CLIENTS - WORKING - WAITING + 4


def test_refusals_take_turns_and_wait_a_second_at_most() -> None:
    admission, now = Admission(1, 1), 100.0
    assert admission.pause(now) == 0
    pauses = [admission.pause(now) for _ in range(1000)]
    assert pauses[:2] == pytest.approx([1 / 400, 2 / 400])
    assert pauses[-1] == pytest.approx(1.0)
    assert admission.pause(now + 0.5) == pytest.approx(0.5 + 1 / 400)
    assert admission.pause(now + 9) == 0


def test_who_waited_beyond_the_deadline_is_not_worked_on(narrow: SearchEngine, gate: threading.Event) -> None:
    leg = GatedLeg(narrow, "dense", gate)
    with live(create_app(narrow)) as url, ThreadPoolExecutor(CLIENTS) as pool:
        busy = [pool.submit(search, url) for _ in range(WORKING)]
        for _ in range(WORKING):
            assert leg.entered.acquire(timeout=60)
        late = [pool.submit(search, url, deadline_ms=1) for _ in range(WAITING)]
        # All have arrived; one more in flight asks for the metrics.
        everyone = f"requests_in_flight {WORKING + WAITING + 1:.1f}\n"
        wait_until(lambda: everyone in httpx2.get(f"{url}/metrics", timeout=60).text)
        gate.set()
        assert {future.result().json()["kind"] for future in late} == {"deadline_exceeded"}
        assert {future.result().status_code for future in busy} == {200}
        assert leg.calls == WORKING


def test_accepted_requests_keep_their_deadline_when_both_legs_hang(tiny_bundle: Bundle, gate: threading.Event) -> None:
    settings = SETTINGS.model_copy(update={"deadline_ms": 2_000.0})
    with warm(tiny_bundle, settings) as engine:
        legs = [GatedLeg(engine, "dense", gate), GatedLeg(engine, "sparse", gate)]
        with live(create_app(engine)) as url, ThreadPoolExecutor(CLIENTS) as pool:
            answers = [future.result() for future in [pool.submit(search, url) for _ in range(2 * CLIENTS)]]
            kinds = Counter(answer.json()["kind"] for answer in answers)
            # On a slow machine requests come apart, and calls hang for so long that they count as stuck.
            assert {"deadline_exceeded"} <= set(kinds) <= {"overloaded", "deadline_exceeded", "not_ready"}
            for leg in legs:
                leg.restore()
            gate.set()
            # The lanes' threads return as soon as their calls do.
            while (answer := search(url)).status_code != 200:
                assert answer.json()["kind"] in ("deadline_exceeded", "not_ready")
            assert answer.json()["degraded"] in ([], ["dense"], ["sparse"])


def test_the_count_goes_down_whatever_happens() -> None:
    admission = Admission(1, 1)
    with admission.enter():
        with pytest.raises(ZeroDivisionError), admission.enter():
            raise ZeroDivisionError
        with admission.enter(), pytest.raises(OverloadedError), admission.enter():
            pass
    with admission.enter(), admission.enter(), raises(OverloadedError, naming="max_waiting"):
        admission.check()
    assert admission.admitted == 0


def test_of_those_that_come_in_one_turn_as_many_are_answered_as_may_wait(narrow: SearchEngine) -> None:
    """Light searches are answered in the event loop, where one that is answered keeps the others from coming. 64 times
    as many come as are admitted."""
    count = 64 * (WORKING + WAITING)

    async def turn() -> list[int]:
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            asked = [client.post("/search", json={"query": "music"}) for _ in range(count)]
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    app = create_app(narrow)
    app.state.recent["default"].seconds = 0.0
    assert Counter(asyncio.run(turn())) == {200: WORKING + WAITING, 503: count - WORKING - WAITING}
    assert 0 < app.state.recent["default"].seconds < LIGHT_S
    assert app.state.admission.admitted == 0
