"""Degradation: a leg or the documents fail or are late. The broken part stands in the place of the real one."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.encoder import EncodedQuery
from service.engine import SearchEngine
from service.errors import DeadlineError, NotReadyError, SearchFailedError
from service.legs import Found, Leg
from service.schemas import LegName, LinearFusion, SearchRequest, Weights

LEGS = pytest.mark.parametrize("leg", ["dense", "sparse"])
HURRY_MS = 600.0


class FailingLeg:
    """Raises, in search or only when it scores given documents."""

    def __init__(self, leg: Leg, *, search: bool = True) -> None:
        self._leg = leg
        self._search = search

    def search(self, query: EncodedQuery, count: int) -> Found:
        if self._search:
            raise OSError("broken leg")
        return self._leg.search(query, count)

    def scores(self, query: EncodedQuery, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        raise OSError("broken leg")


class StuckLeg(FailingLeg):
    """Hangs until the gate opens."""

    def __init__(self, leg: Leg, gate: threading.Event) -> None:
        super().__init__(leg, search=False)
        self._gate = gate

    def search(self, query: EncodedQuery, count: int) -> Found:
        self._gate.wait()
        return super().search(query, count)


@contextmanager
def stuck(engine: SearchEngine, leg: LegName) -> Iterator[None]:
    gate = threading.Event()
    engine.parts.legs[leg] = StuckLeg(engine.parts.legs[leg], gate)
    try:
        yield
    finally:
        gate.set()


def other(leg: LegName) -> LegName:
    return "sparse" if leg == "dense" else "dense"


def metric(engine: SearchEngine, name: str, **labels: str) -> float:
    return engine.metrics.registry.get_sample_value(name, labels) or 0.0


@LEGS
def test_a_failed_leg_leaves_the_other_ones_ranking(fresh_engine: SearchEngine, leg: LegName) -> None:
    expected = fresh_engine.search(SearchRequest(query="play music", mode=other(leg), k=20)).hits
    fresh_engine.parts.legs[leg] = FailingLeg(fresh_engine.parts.legs[leg])
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
        assert metric(fresh_engine, "lightretriever_abandoned_calls", lane=leg) == 1
    assert fresh_engine.parts.lanes[leg].close()
    assert metric(fresh_engine, "lightretriever_abandoned_calls", lane=leg) == 0


@LEGS
def test_who_wants_both_legs_gets_an_error_without_one(fresh_engine: SearchEngine, leg: LegName) -> None:
    healthy = fresh_engine.parts.legs[leg]
    fresh_engine.parts.legs[leg] = FailingLeg(healthy)
    for request in (SearchRequest(query="a", allow_partial=False), SearchRequest(query="a", mode=leg)):
        with pytest.raises(SearchFailedError, match=f"leg {leg} failed"):
            fresh_engine.search(request)
    fresh_engine.parts.legs[leg] = healthy
    with stuck(fresh_engine, leg):
        late = SearchRequest(query="a", allow_partial=False, deadline_ms=HURRY_MS)
        for request in (late, late.model_copy(update={"mode": leg, "allow_partial": True})):
            with pytest.raises(DeadlineError, match=f"leg {leg} within 480 ms"):
                fresh_engine.search(request)


def test_no_leg_no_answer(fresh_engine: SearchEngine) -> None:
    for leg in ("dense", "sparse"):
        fresh_engine.parts.legs[leg] = FailingLeg(fresh_engine.parts.legs[leg])
    with pytest.raises(SearchFailedError, match="dense and sparse"):
        fresh_engine.search(SearchRequest(query="a"))


@LEGS
def test_a_leg_that_can_not_score_the_others_candidates_is_named(fresh_engine: SearchEngine, leg: LegName) -> None:
    fresh_engine.parts.legs[leg] = FailingLeg(fresh_engine.parts.legs[leg], search=False)
    request = SearchRequest(query="play music", candidates=10)
    answer = fresh_engine.search(request)
    assert answer.degraded == [leg]
    assert None in {getattr(hit, leg) for hit in answer.hits}
    with pytest.raises(SearchFailedError):
        fresh_engine.search(request.model_copy(update={"allow_partial": False}))


@LEGS
def test_a_leg_of_weight_zero_may_be_broken(fresh_engine: SearchEngine, leg: LegName) -> None:
    fresh_engine.parts.legs[leg] = FailingLeg(fresh_engine.parts.legs[leg])
    weights = Weights(dense=float(leg != "dense"), sparse=float(leg != "sparse"))
    request = SearchRequest(query="a", allow_partial=False, fusion=LinearFusion(weights=weights))
    assert fresh_engine.search(request).degraded == []


@LEGS
def test_a_stuck_leg_takes_its_own_threads_only(fresh_engine: SearchEngine, leg: LegName) -> None:
    fresh_engine.warm_up()
    with stuck(fresh_engine, leg):
        while not fresh_engine.parts.lanes[leg].stuck:
            assert fresh_engine.search(SearchRequest(query="a", deadline_ms=HURRY_MS)).degraded == [leg]
        with pytest.raises(NotReadyError, match=f"don't end, in: {leg}"):
            fresh_engine.require_ready()
        # Without a thread to wait for, the leg is given up at once: a long deadline isn't used up.
        answer = fresh_engine.search(SearchRequest(query="a"))
        assert answer.degraded == [leg]
        assert answer.timings_ms.total < fresh_engine.settings.deadline_ms / 2
    assert fresh_engine.parts.lanes[leg].close()
    assert not fresh_engine.parts.lanes[leg].stuck


def test_documents_that_can_not_be_read(fresh_engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError("broken documents")

    monkeypatch.setattr(fresh_engine.parts.documents, "fetch", fail)
    with pytest.raises(SearchFailedError, match="documents"):
        fresh_engine.search(SearchRequest(query="a"))
    gate = threading.Event()
    monkeypatch.setattr(fresh_engine.parts.documents, "fetch", lambda *_: gate.wait())
    monkeypatch.setattr(fresh_engine.parts.documents, "get", lambda *_: gate.wait())
    with pytest.raises(DeadlineError, match="documents were not read within 600 ms"):
        fresh_engine.search(SearchRequest(query="a", deadline_ms=HURRY_MS))
    gate.set()


def test_a_request_that_waited_too_long_is_not_begun(fresh_engine: SearchEngine) -> None:
    with pytest.raises(DeadlineError, match="before its turn"):
        fresh_engine.search(SearchRequest(query="a", deadline_ms=5), arrived=0.0)


def test_faults_over_http(fresh_engine: SearchEngine) -> None:
    fresh_engine.warm_up()
    body = {"query": "play music"}
    with TestClient(create_app(fresh_engine)) as client:
        healthy = fresh_engine.parts.legs["dense"]
        fresh_engine.parts.legs["dense"] = FailingLeg(healthy)
        assert client.post("/search", json=body).json()["degraded"] == ["dense"]
        refused = client.post("/search", json={**body, "allow_partial": False})
        assert (refused.status_code, refused.json()["kind"]) == (500, "search_failed")
        fresh_engine.parts.legs["dense"] = healthy
        with stuck(fresh_engine, "sparse"):
            late = client.post("/search", json={**body, "deadline_ms": HURRY_MS, "allow_partial": False})
            assert (late.status_code, late.json()["kind"]) == (504, "deadline_exceeded")
            while not fresh_engine.parts.lanes["sparse"].stuck:
                client.post("/search", json={**body, "deadline_ms": HURRY_MS})
            assert client.get("/readyz").status_code == 503
            assert client.get("/livez").status_code == 200
            # The documents have threads of their own.
            assert client.get("/documents/music").status_code == 200


def test_a_mistake_of_the_service_is_a_problem_too(
    fresh_engine: SearchEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("a mistake with a secret in it")

    with TestClient(create_app(fresh_engine)) as client:
        monkeypatch.setattr(fresh_engine, "search", fail)
        answer = client.post("/search", json={"query": "a"}, headers={"x-request-id": "abc"})
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "abc"
    assert answer.json()["kind"] == "internal_error"
    assert "secret" not in answer.text
    assert "secret" in caplog.text
