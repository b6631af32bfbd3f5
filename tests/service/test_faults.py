"""Degradation: a leg or the documents fail or are late. The broken part stands in the place of the real one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import perf_counter, sleep
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fastapi.testclient import TestClient
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.sparse.index import DocumentSet, ImpactIndex
from lightretriever.service.backends.base import EncodedQuery, Leg, ScoredDocuments
from lightretriever.service.errors import DeadlineError, NotReadyError, SearchFailedError
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import EncodeRequest, LegName, LinearFusion, SearchRequest, Weights
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings

from tests.service.live import warm
from tests.support.legs import WrappedLeg

pytestmark = pytest.mark.usefixtures("handed_over")
LEGS = pytest.mark.parametrize("leg", ["dense", "sparse"])
HURRY_MS = 3_000.0
MODES: tuple[LegName, ...] = ("sparse", "dense", "dense")


class FailingLeg(WrappedLeg):
    """Raises, in search or only when it scores given documents."""

    def __init__(self, leg: Leg, *, search: bool = True) -> None:
        super().__init__(leg)
        self._search = search

    def search(
        self, query: EncodedQuery, count: int, among: DocumentSet | None = None, until: float = inf
    ) -> ScoredDocuments:
        if self._search:
            raise OSError("broken leg")
        return super().search(query, count, among, until)

    def scores(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        raise OSError("broken leg")


class StuckLeg(FailingLeg):
    """Hangs until the gate opens; the sparse leg ends by itself when it is late."""

    def __init__(self, leg: Leg, gate: threading.Event) -> None:
        super().__init__(leg, search=False)
        self._gate = gate

    def search(
        self, query: EncodedQuery, count: int, among: DocumentSet | None = None, until: float = inf
    ) -> ScoredDocuments:
        if not self._gate.wait(until - perf_counter() if self.name == "sparse" and until < inf else None):
            raise TimeoutError("late")
        return super().search(query, count, among, until)


@contextmanager
def stuck(engine: SearchEngine, leg: LegName) -> Iterator[None]:
    gate = threading.Event()
    engine.parts.backends.legs[leg] = StuckLeg(engine.parts.backends.legs[leg], gate)
    try:
        yield
    finally:
        gate.set()


def settle(engine: SearchEngine, lane: str) -> None:
    """Wait for the end of the calls that nobody waits for."""
    while engine.parts.executor.lanes[lane].abandoned:
        sleep(0.001)


def other(leg: LegName) -> LegName:
    return "sparse" if leg == "dense" else "dense"


def metric(engine: SearchEngine, name: str, **labels: str) -> float:
    engine.metrics.refresh()
    return engine.metrics.registry.get_sample_value(name, labels) or 0.0


@LEGS
def test_a_failed_leg_leaves_the_other_ones_ranking(fresh_engine: SearchEngine, leg: LegName) -> None:
    expected = fresh_engine.search(SearchRequest(query="play music", mode=other(leg), k=20)).hits
    fresh_engine.parts.backends.legs[leg] = FailingLeg(fresh_engine.parts.backends.legs[leg])
    answer = fresh_engine.search(SearchRequest(query="play music", k=20))
    assert answer.degraded == [leg]
    assert [hit.id for hit in answer.hits] == [hit.id for hit in expected]
    assert [getattr(hit, other(leg)) for hit in answer.hits] == [getattr(hit, other(leg)) for hit in expected]
    assert {getattr(hit, leg) for hit in answer.hits} == {None}
    assert metric(fresh_engine, "lightretriever_degraded_total", leg=leg, reason="failed") == 1


@LEGS
def test_a_late_leg_is_left_behind_and_counted(fresh_engine: SearchEngine, leg: LegName) -> None:
    with stuck(fresh_engine, leg):
        answer = fresh_engine.search(SearchRequest(query="play music", deadline_ms=HURRY_MS))
        assert answer.degraded == [leg]
        assert len(answer.hits) == 10
        assert metric(fresh_engine, "lightretriever_degraded_total", leg=leg, reason="late") == 1
        assert metric(fresh_engine, "lightretriever_abandoned_calls", lane="dense") == (leg == "dense")
    settle(fresh_engine, "dense")
    assert metric(fresh_engine, "lightretriever_abandoned_calls", lane="dense") == 0


@LEGS
def test_who_wants_both_legs_gets_an_error_without_one(fresh_engine: SearchEngine, leg: LegName) -> None:
    healthy = fresh_engine.parts.backends.legs[leg]
    fresh_engine.parts.backends.legs[leg] = FailingLeg(healthy)
    for request in (SearchRequest(query="a", allow_partial=False), SearchRequest(query="a", mode=leg)):
        with pytest.raises(SearchFailedError, match=f"leg {leg} failed"):
            fresh_engine.search(request)
    fresh_engine.parts.backends.legs[leg] = healthy
    with stuck(fresh_engine, leg):
        late = SearchRequest(query="a", allow_partial=False, deadline_ms=HURRY_MS)
        for request in (late, late.model_copy(update={"mode": leg, "allow_partial": True})):
            with pytest.raises(DeadlineError, match=f"leg {leg} within 2400 ms"):
                fresh_engine.search(request)


def test_no_leg_no_answer(fresh_engine: SearchEngine) -> None:
    for leg in ("dense", "sparse"):
        fresh_engine.parts.backends.legs[leg] = FailingLeg(fresh_engine.parts.backends.legs[leg])
    with pytest.raises(SearchFailedError, match="dense and sparse"):
        fresh_engine.search(SearchRequest(query="a"))


@LEGS
def test_candidates_that_a_leg_can_not_score_do_not_make_it_a_missing_leg(
    fresh_engine: SearchEngine, leg: LegName
) -> None:
    fresh_engine.parts.backends.legs[leg] = FailingLeg(fresh_engine.parts.backends.legs[leg], search=False)
    for allow_partial in (True, False):
        answer = fresh_engine.search(SearchRequest(query="play music", candidates=10, allow_partial=allow_partial))
        assert answer.degraded == []
        assert None in {getattr(hit, leg) for hit in answer.hits}
    assert metric(fresh_engine, "lightretriever_unscored_total", leg=leg, reason="failed") == 2
    assert metric(fresh_engine, "lightretriever_degraded_total", leg=leg, reason="failed") == 0


@pytest.mark.parametrize("fusion", ["range", "paper", "rrf"])
def test_candidates_are_not_scored_where_no_time_is_left_for_it(
    fresh_engine: SearchEngine, fusion: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"method": "rrf"} if fusion == "rrf" else {"method": "linear", "normalization": fusion}
    request = SearchRequest.model_validate(
        {"query": "play music", "candidates": 10, "fusion": chosen, "allow_partial": False}
    )
    healthy = fresh_engine.search(request)
    monkeypatch.setattr("lightretriever.service.search.pipeline._RESCORE_UNTIL", 0.0)
    answer = fresh_engine.search(request)
    assert answer.degraded == []
    assert len(answer.hits) == 10
    for leg in ("dense", "sparse"):
        assert None in {getattr(hit, leg) for hit in answer.hits}
        assert metric(fresh_engine, "lightretriever_unscored_total", leg=leg, reason="late") == 1
    assert "candidates not scored" in caplog.text
    if fusion != "range":
        assert [(hit.id, hit.score) for hit in answer.hits] == [(hit.id, hit.score) for hit in healthy.hits]


@LEGS
def test_a_leg_of_weight_zero_may_be_broken(fresh_engine: SearchEngine, leg: LegName) -> None:
    fresh_engine.parts.backends.legs[leg] = FailingLeg(fresh_engine.parts.backends.legs[leg])
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
        with pytest.raises(NotReadyError, match=f"don't end hold all threads of: {leg}"):
            hasty_engine.require_ready()
        assert metric(hasty_engine, "lightretriever_ready") == 0
        # Without a thread to wait for, the leg is given up at once.
        assert hasty_engine.search(SearchRequest(query="a")).degraded == [leg]
        assert metric(hasty_engine, "lightretriever_degraded_total", leg=leg, reason="stuck") >= 1
        with pytest.raises(DeadlineError, match=f"leg {leg} has no free thread"):
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


def test_an_error_in_a_batch_says_which_search(fresh_engine: SearchEngine) -> None:
    fresh_engine.parts.backends.legs["sparse"] = FailingLeg(fresh_engine.parts.backends.legs["sparse"])
    with pytest.raises(SearchFailedError, match=r"^searches\.1: The leg sparse failed"):
        fresh_engine.search_batch([SearchRequest(query="a"), SearchRequest(query="a", mode="sparse")])


def test_a_failing_batch_leaves_no_call_unattended(fresh_engine: SearchEngine) -> None:
    """The first search fails while the dense leg of the second one hangs; the third one is not begun any more."""
    gate, entered = threading.Event(), threading.Event()

    class Entered(StuckLeg):
        def search(
            self, query: EncodedQuery, count: int, among: DocumentSet | None = None, until: float = inf
        ) -> ScoredDocuments:
            entered.set()
            return super().search(query, count, among, until)

    class FailingAfterwards(FailingLeg):
        def search(
            self, query: EncodedQuery, count: int, among: DocumentSet | None = None, until: float = inf
        ) -> ScoredDocuments:
            assert entered.wait(30)
            return super().search(query, count, among, until)

    fresh_engine.parts.backends.legs["dense"] = Entered(fresh_engine.parts.backends.legs["dense"], gate)
    fresh_engine.parts.backends.legs["sparse"] = FailingAfterwards(fresh_engine.parts.backends.legs["sparse"])
    with pytest.raises(SearchFailedError, match=r"^searches\.0: "):
        fresh_engine.search_batch([SearchRequest(query="a", mode=mode, deadline_ms=HURRY_MS) for mode in MODES])
    # The second one goes on until its deadline, and has nobody to tell then.
    while metric(fresh_engine, "lightretriever_search_seconds_count") < 2:
        sleep(0.01)
    assert metric(fresh_engine, "lightretriever_abandoned_calls", lane="dense") == 1
    assert not any(
        metric(fresh_engine, "lightretriever_degraded_total", leg="dense", reason=reason)
        for reason in ("late", "failed", "stuck")
    )
    gate.set()
    settle(fresh_engine, "dense")
    assert metric(fresh_engine, "lightretriever_abandoned_calls", lane="dense") == 0


class BrokenDocuments(ImpactIndex):
    """Can't be read, once they were opened."""

    def documents(self, ordinals: npt.NDArray[np.integer[Any]]) -> list[bytes]:
        raise OSError("broken documents")


class HangingDocuments(ImpactIndex):
    """Are read when the gate opens."""

    gate: threading.Event

    def documents(self, ordinals: npt.NDArray[np.integer[Any]]) -> list[bytes]:
        self.gate.wait()
        return super().documents(ordinals)


def test_documents_that_can_not_be_read(fresh_engine: SearchEngine) -> None:
    with fresh_engine.bundle.sparse() as index:
        fresh_engine.parts.documents.store = BrokenDocuments(index.handle, index.path)
        with pytest.raises(SearchFailedError, match="documents could not be read"):
            fresh_engine.search(SearchRequest(query="a"))
        with pytest.raises(SearchFailedError, match="documents could not be read"):
            fresh_engine.document("music")


def test_documents_that_hang_hold_their_requests_only(hasty_engine: SearchEngine) -> None:
    body = {"query": "play music"}
    healthy = hasty_engine.parts.documents.store
    with TestClient(create_app(hasty_engine)) as client, hasty_engine.bundle.sparse() as index:
        hanging = hasty_engine.parts.documents.store = HangingDocuments(index.handle, index.path)
        hanging.gate = threading.Event()
        late = client.post("/search", json=body)
        assert (late.status_code, late.json()["kind"]) == (504, "deadline_exceeded")
        assert "within 3000 ms" in late.json()["detail"]
        assert metric(hasty_engine, "lightretriever_abandoned_calls", lane="requests") == 1
        hasty_engine.parts.documents.store = healthy
        assert client.post("/search", json=body).status_code == 200  # by the other thread
        hasty_engine.parts.documents.store = hanging
        while not hasty_engine.parts.executor.lanes["requests"].stuck:
            assert client.get("/documents/music").status_code in (503, 504)
        assert client.get("/readyz").status_code == 503
        refused = client.post("/search", json=body)
        assert (refused.status_code, refused.json()["kind"]) == (503, "not_ready")
        hanging.gate.set()
        settle(hasty_engine, "requests")
        hasty_engine.parts.documents.store = healthy
        assert client.post("/search", json=body).status_code == 200


def test_a_request_that_waited_too_long_is_not_begun(fresh_engine: SearchEngine) -> None:
    with pytest.raises(DeadlineError, match="had not begun"):
        fresh_engine.search(SearchRequest(query="a", deadline_ms=5), StageClock(0.0))
    with pytest.raises(DeadlineError, match="turn of the request"):
        fresh_engine.encode(EncodeRequest(text="a"), StageClock(0.0))


def test_faults_over_http(fresh_engine: SearchEngine) -> None:
    fresh_engine.warm_up()
    body = {"query": "play music"}
    with TestClient(create_app(fresh_engine)) as client:
        healthy = fresh_engine.parts.backends.legs["dense"]
        fresh_engine.parts.backends.legs["dense"] = FailingLeg(healthy)
        assert client.post("/search", json=body).json()["degraded"] == ["dense"]
        refused = client.post("/search", json={**body, "allow_partial": False})
        assert (refused.status_code, refused.json()["kind"]) == (500, "search_failed")
        fresh_engine.parts.backends.legs["dense"] = healthy
        with stuck(fresh_engine, "sparse"):
            late = client.post("/search", json={**body, "deadline_ms": HURRY_MS, "allow_partial": False})
            assert (late.status_code, late.json()["kind"]) == (504, "deadline_exceeded")
            assert client.get("/livez").status_code == 200
            assert client.get("/documents/music").status_code == 200


def test_readiness_over_http_when_a_leg_is_stuck(hasty_engine: SearchEngine) -> None:
    with TestClient(create_app(hasty_engine)) as client, stuck(hasty_engine, "dense"):
        assert client.get("/readyz").status_code == 200
        while not hasty_engine.parts.executor.lanes["dense"].stuck:
            client.post("/search", json={"query": "play music"})
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200


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
