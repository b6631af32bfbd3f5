"""Degradation: a leg or the documents fail or are late. The broken part stands in the place of the real one.

tests/faults/test_legs.py breaks them in Java and in Faiss, behind a real server.
"""

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from time import perf_counter

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import DeadlineError, NotReadyError, SearchFailedError
from lightretriever.service.execution.executor import Executor
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import EncodeRequest, LegName, LinearFusion, SearchRequest, Weights
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import warm
from tests.support.legs import FailingLeg, GatedLeg
from tests.support.waiting import wait_until
from tests.support.wordings import raises

pytestmark = pytest.mark.usefixtures("handed_over")
LEGS = pytest.mark.parametrize("leg", ["dense", "sparse"])
HURRY_MS = 3_000.0
MODES: tuple[LegName, ...] = ("sparse", "dense", "dense")


@contextmanager
def stuck(engine: SearchEngine, leg: LegName) -> Iterator[None]:
    gate = threading.Event()
    GatedLeg(engine, leg, gate)
    try:
        yield
    finally:
        gate.set()


def settle(engine: SearchEngine, lane: str) -> None:
    """Wait for the end of the calls that nobody waits for."""
    wait_until(lambda: not engine.parts.executor.lanes[lane].abandoned)


def metric(engine: SearchEngine, name: str, **labels: str) -> float:
    engine.metrics.refresh()
    return engine.metrics.registry.get_sample_value(name, labels) or 0.0


@LEGS
def test_a_late_leg_is_left_behind_and_counted_and_who_needs_it_gets_an_error(
    fresh_engine: SearchEngine, leg: LegName
) -> None:
    with stuck(fresh_engine, leg):
        answer = fresh_engine.search(SearchRequest(query="play music", deadline_ms=HURRY_MS))
        assert (answer.degraded, len(answer.hits)) == ([leg], 10)
        assert metric(fresh_engine, "lightretriever_degraded_total", leg=leg, reason="late") == 1
        assert metric(fresh_engine, "lightretriever_abandoned_calls", lane="dense") == (leg == "dense")
    settle(fresh_engine, "dense")
    assert metric(fresh_engine, "lightretriever_abandoned_calls", lane="dense") == 0
    with stuck(fresh_engine, leg):
        late = SearchRequest(query="a", allow_partial=False, deadline_ms=HURRY_MS)
        for request in (late, late.model_copy(update={"mode": leg, "allow_partial": True})):
            with raises(DeadlineError, naming="2400"):
                fresh_engine.search(request)


@LEGS
def test_candidates_that_a_leg_can_not_score_do_not_make_it_a_missing_leg(
    fresh_engine: SearchEngine, leg: LegName, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightretriever.service.backends.local.hands_over", lambda *_: True)  # no leg knows the other's
    FailingLeg(fresh_engine, leg, search=False)
    for allow_partial in (True, False):
        answer = fresh_engine.search(SearchRequest(query="play music", candidates=10, allow_partial=allow_partial))
        assert answer.degraded == []
        assert None in {getattr(hit, leg) for hit in answer.hits}
    assert metric(fresh_engine, "lightretriever_unscored_total", leg=leg, reason="failed") == 2
    assert metric(fresh_engine, "lightretriever_degraded_total", leg=leg, reason="failed") == 0


def test_candidates_are_not_scored_where_no_time_is_left_for_it(
    fresh_engine: SearchEngine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for times, fusion in enumerate(("range", "paper", "rrf"), 1):
        chosen = {"method": "rrf"} if fusion == "rrf" else {"method": "linear", "normalization": fusion}
        asked = {"query": "play music", "candidates": 10, "fusion": chosen, "allow_partial": False}
        request = SearchRequest.model_validate(asked)
        healthy = fresh_engine.search(request)
        with monkeypatch.context() as patched:
            patched.setattr("lightretriever.service.search.pipeline.RESCORE_UNTIL", 0.0)
            answer = fresh_engine.search(request)
        assert (answer.degraded, len(answer.hits)) == ([], 10)
        for leg in ("dense", "sparse"):
            assert None in {getattr(hit, leg) for hit in answer.hits}
            assert metric(fresh_engine, "lightretriever_unscored_total", leg=leg, reason="late") == times
        if fusion != "range":
            assert [(hit.id, hit.score) for hit in answer.hits] == [(hit.id, hit.score) for hit in healthy.hits]
    assert "candidates not scored" in caplog.text


@LEGS
def test_a_leg_of_weight_zero_may_be_broken(fresh_engine: SearchEngine, leg: LegName) -> None:
    FailingLeg(fresh_engine, leg)
    weights = Weights(dense=float(leg != "dense"), sparse=float(leg != "sparse"))
    request = SearchRequest(query="a", allow_partial=False, fusion=LinearFusion(weights=weights))
    assert fresh_engine.search(request).degraded == []


@pytest.fixture
def hasty_engine(tiny_bundle: Bundle) -> Iterator[SearchEngine]:
    """Two threads per leg, and a deadline soon passed."""
    with warm(tiny_bundle, Settings(deadline_ms=HURRY_MS, search_threads=2, warm_up_queries=1)) as engine:
        yield engine


def test_a_stuck_dense_leg_takes_its_own_threads_only(hasty_engine: SearchEngine) -> None:
    leg: LegName = "dense"
    with stuck(hasty_engine, leg):
        while not hasty_engine.parts.executor.lanes[leg].stuck:
            assert hasty_engine.search(SearchRequest(query="a")).degraded == [leg]
        with raises(NotReadyError):
            hasty_engine.require_ready()
        assert metric(hasty_engine, "lightretriever_ready") == 0
        # Without a thread to wait for, the leg is given up at once.
        assert hasty_engine.search(SearchRequest(query="a")).degraded == [leg]
        assert metric(hasty_engine, "lightretriever_degraded_total", leg=leg, reason="stuck") >= 1
        with raises(DeadlineError):
            hasty_engine.search(SearchRequest(query="a", mode=leg))
    settle(hasty_engine, leg)
    assert not hasty_engine.parts.executor.lanes[leg].stuck
    assert metric(hasty_engine, "lightretriever_ready") == 1


def test_impatient_clients_do_not_make_a_leg_stuck(fresh_engine: SearchEngine) -> None:
    fresh_engine.warm_up()
    with stuck(fresh_engine, "dense"):
        for _ in range(5):
            request = SearchRequest(query="a", deadline_ms=20, mode="dense")
            with pytest.raises(DeadlineError):
                fresh_engine.search(request)
        fresh_engine.require_ready()
        assert metric(fresh_engine, "lightretriever_ready") == 1


def test_a_failing_batch_leaves_no_call_unattended(fresh_engine: SearchEngine, gate: threading.Event) -> None:
    """The first search fails while the dense leg of the second one hangs."""
    dense = GatedLeg(fresh_engine, "dense", gate)

    class FailingAfterwards(FailingLeg):
        def begin(self, count: int, seconds: float) -> None:
            assert dense.entered.acquire(timeout=30)
            super().begin(count, seconds)

    FailingAfterwards(fresh_engine, "sparse")
    batch = fresh_engine.batch([SearchRequest(query="a", mode=mode, deadline_ms=HURRY_MS) for mode in MODES[:2]])
    calls = [fresh_engine.submit(answer) for answer in batch]
    with raises(SearchFailedError, naming="searches.0"):
        calls[0].future.result()
    # The second one goes on until its deadline, and has nobody to tell then.
    wait_until(lambda: metric(fresh_engine, "lightretriever_search_seconds_count") == 2)
    assert metric(fresh_engine, "lightretriever_abandoned_calls", lane="dense") == 1
    assert not any(
        metric(fresh_engine, "lightretriever_degraded_total", leg="dense", reason=reason)
        for reason in ("late", "failed", "stuck")
    )
    gate.set()
    settle(fresh_engine, "dense")
    assert metric(fresh_engine, "lightretriever_abandoned_calls", lane="dense") == 0


@pytest.mark.parametrize("path", ["/documents/music", "/search?q=music"])
def test_documents_that_hang_hold_their_request_only(
    hasty_engine: SearchEngine, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    store = hasty_engine.parts.documents.store
    read = store.documents
    with TestClient(create_app(hasty_engine)) as client:
        with monkeypatch.context() as patched:
            patched.setattr(store, "documents", lambda ordinals: (gate.wait(), read(ordinals))[1])
            late = client.get(path)
        assert (late.status_code, late.json()["kind"]) == (504, "deadline_exceeded")
        assert "within 3000 ms" in late.json()["detail"]
        assert metric(hasty_engine, "lightretriever_abandoned_calls", lane="requests") == 1
        assert client.get(path).status_code == 200  # by the other thread
        gate.set()
        settle(hasty_engine, "requests")


def test_a_request_that_waited_too_long_is_not_begun(fresh_engine: SearchEngine) -> None:
    with pytest.raises(DeadlineError, match="had not begun"):
        fresh_engine.search(SearchRequest(query="a", deadline_ms=5), StageClock(0.0))
    with raises(DeadlineError, naming="60000"):
        fresh_engine.encode(EncodeRequest(text="a"), StageClock(0.0))
    with raises(DeadlineError, naming="60000"):
        fresh_engine.document("music", StageClock(0.0))


def test_a_mistake_of_the_service_is_a_problem_too(
    fresh_engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("a mistake with a secret in it")

    with TestClient(create_app(fresh_engine)) as client:
        monkeypatch.setattr(fresh_engine, "answer", fail)
        answer = client.post("/search", json={"query": "a"}, headers={"x-request-id": "abc"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "abc"
    assert answer.json()["kind"] == "internal_error"
    assert "secret" not in answer.text
    assert "secret" in caplog.text


def test_a_call_that_never_began_is_cancelled(gate: threading.Event) -> None:
    begun: list[int] = []
    with closing(Executor()) as executor:
        executor.add("one", 1, patience_s=60)
        assert executor.begin("one", gate.wait, perf_counter() + 0.1)().reason == "late"
        assert executor.begin("one", lambda: begun.append(1), perf_counter() + 0.1)().reason == "late"
        gate.set()
        assert executor.begin("one", lambda: 7, perf_counter() + 60)().value == 7
    assert begun == []
