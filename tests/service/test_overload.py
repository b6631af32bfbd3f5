"""More requests than there is room for, on a real server: refused cleanly, and over when it is over."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.collections.collections import Collections
from lightretriever.service.collections.swap import EngineHolder
from lightretriever.service.errors import OverloadedError
from lightretriever.service.http.app import create_app
from lightretriever.service.http.handling import Admission
from lightretriever.service.http.lanes import LIGHT_S
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import live, warm
from tests.support.legs import GatedLeg
from tests.support.waiting import wait_until
from tests.support.wordings import raises

WORKING, WAITING, CLIENTS = 2, 3, 24
SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=1, search_threads=WORKING, max_waiting=WAITING)


@pytest.fixture
def narrow(tiny_bundle: Bundle) -> Iterator[SearchEngine]:
    with warm(tiny_bundle, SETTINGS) as engine:
        yield engine


def search(url: str, **fields: object) -> httpx2.Response:
    return httpx2.post(f"{url}/search", json={"query": "music", **fields}, timeout=90)


def test_what_is_too_much_is_refused_and_the_rest_is_answered(narrow: SearchEngine, gate: threading.Event) -> None:
    leg = narrow.parts.backends.legs["dense"] = GatedLeg(narrow.parts.backends.legs["dense"], gate)
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
        for refusal in (
            httpx2.get(f"{url}/documents/music", timeout=60),
            httpx2.post(f"{url}/encode", json={"text": "a"}, timeout=60),
            httpx2.post(f"{url}/search/batch", json={"searches": [{"query": "a"}]}, timeout=60),
            search(url, query="", k="neither is looked at"),
        ):
            problem = refusal.json()
            assert (refusal.status_code, problem["kind"]) == (503, "overloaded")
            assert refusal.headers["retry-after"] == "1"
            assert refusal.headers["content-type"] == "application/problem+json"
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
    leg = narrow.parts.backends.legs["dense"] = GatedLeg(narrow.parts.backends.legs["dense"], gate)
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
        healthy = dict(engine.parts.backends.legs)
        for name in ("dense", "sparse"):
            engine.parts.backends.legs[name] = GatedLeg(engine.parts.backends.legs[name], gate)
        with live(create_app(engine)) as url, ThreadPoolExecutor(CLIENTS) as pool:
            answers = [future.result() for future in [pool.submit(search, url) for _ in range(2 * CLIENTS)]]
            kinds = Counter(answer.json()["kind"] for answer in answers)
            # On a slow machine requests come apart, and calls hang for so long that they count as stuck.
            assert {"deadline_exceeded"} <= set(kinds) <= {"overloaded", "deadline_exceeded", "not_ready"}
            engine.parts.backends.legs.update(healthy)
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
    app.state.collections = Collections({"default": EngineHolder(narrow)})
    app.state.recent("default").seconds = 0.0
    assert Counter(asyncio.run(turn())) == {200: WORKING + WAITING, 503: count - WORKING - WAITING}
    assert 0 < app.state.recent("default").seconds < LIGHT_S
    assert app.state.admission.admitted == 0
