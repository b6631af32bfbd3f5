"""Opening and closing the application leaves nothing behind, readiness follows the warm-up, and what stays in memory is
not looked through again and again."""

import gc
import os
import signal
import threading
from contextlib import closing
from pathlib import Path
from socket import create_server

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.collections.collections import Collections, EngineHolder
from lightretriever.service.errors import DeadlineError, NotReadyError, SearchFailedError
from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import Plain, SearchRequest
from lightretriever.service.search import pipeline
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.request import SearchContext
from lightretriever.service.serving.server import serve
from lightretriever.service.settings import Settings
from tests.service.live import client_of_folder
from tests.support.wordings import raises

SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=1)


def resources(bundle: Bundle) -> tuple[int, int]:
    """Open, search and close; then count descriptors and threads."""
    with client_of_folder(bundle.path, SETTINGS) as client:
        assert len(client.post("/search", json={"query": "play music"}).json()["hits"]) == 10
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir()), threading.active_count()


@pytest.mark.slow
def test_twenty_openings_leave_no_descriptors_and_no_threads(tiny_bundle: Bundle) -> None:
    descriptors, threads = resources(tiny_bundle)
    after = [resources(tiny_bundle) for _ in range(20)][-1]
    # Java opens a file or two of its own now and then; a leak would leave at least one for each opening.
    assert after[0] < descriptors + 10
    assert after[1] == threads


def test_ready_after_the_warm_up(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, ready = threading.Event(), threading.Event()
    warm_up = SearchEngine.warm_up

    def slow(engine: SearchEngine, stop: threading.Event) -> None:
        gate.wait()
        warm_up(engine, stop)

    monkeypatch.setattr(SearchEngine, "warm_up", slow)
    with client_of_folder(tiny_bundle.path, SETTINGS, on_ready=ready.set) as client:
        waiting = client.get("/readyz")
        assert (waiting.status_code, waiting.json()["kind"]) == (503, "not_ready")
        assert client.get("/livez").json() == {"status": "alive"}
        assert "lightretriever_ready 0.0" in client.get("/metrics").text
        assert not ready.is_set()
        gate.set()
        assert ready.wait(60)
        assert client.get("/readyz").json() == {"status": "ready"}
        assert "lightretriever_ready 1.0" in client.get("/metrics").text


def test_ready_only_after_the_warm_up_and_not_after_closing(tiny_bundle: Bundle) -> None:
    engine = SearchEngine.open(tiny_bundle, SETTINGS)
    with raises(NotReadyError):
        engine.require_ready()
    engine.warm_up()
    engine.require_ready()
    engine.close()
    engine.close()
    for call in (engine.require_ready, engine.warm_up, lambda: engine.search(SearchRequest(query="a"))):
        with raises(NotReadyError):
            call()
    with raises(NotReadyError):
        engine.document("music")


def test_a_failed_warm_up_is_tried_again(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    warm_up = SearchEngine.warm_up

    def flaky(engine: SearchEngine, stop: threading.Event) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise SearchFailedError("not yet")
        warm_up(engine, stop)

    monkeypatch.setattr(SearchEngine, "warm_up", flaky)
    monkeypatch.setattr("lightretriever.service.http.app._WARM_UP_PAUSE_S", 0.01)
    ready = threading.Event()
    with client_of_folder(tiny_bundle.path, SETTINGS, on_ready=ready.set):
        assert ready.wait(60)
    assert len(tries) == 2


def test_stopping_while_an_engine_of_its_owner_warms_up(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "warm_up_s", 600.0)
    settings = Settings(deadline_ms=60_000, warm_up_queries=1_000_000)
    with SearchEngine.open(tiny_bundle, settings) as engine:
        with TestClient(create_app(engine)) as client:
            assert client.get("/readyz").status_code == 503
        with raises(NotReadyError):
            engine.require_ready()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the searches of warm-ups. The first ones are late: as many as its first number says."""
    found, run = [0], pipeline.search

    def count(context: SearchContext) -> Plain:
        found.append(1)
        if len(found) <= found[0] + 1:
            raise DeadlineError("The legs did not answer in time.")
        return run(context)

    monkeypatch.setattr("lightretriever.service.search.engine.search", count)
    return found


def test_the_warm_up_ends_by_number_or_by_time_and_not_by_two_late_searches_but_by_three(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch, searches: list[int]
) -> None:
    for queries, seconds, late, made in ((7, 600.0, 0, 7), (10**6, 1e-6, 0, 1), (2, 1e-6, 2, 3)):
        monkeypatch.setattr(Settings, "warm_up_s", seconds)
        searches[:] = [late]
        with SearchEngine.open(tiny_bundle, SETTINGS.model_copy(update={"warm_up_queries": queries})) as engine:
            engine.warm_up()
            engine.require_ready()
        assert len(searches) == 1 + made
    searches[:] = [3]
    with SearchEngine.open(tiny_bundle, SETTINGS) as engine:
        with pytest.raises(DeadlineError):
            engine.warm_up()
        with raises(NotReadyError):
            engine.require_ready()


def test_a_process_that_serves_has_settled_when_it_is_ready(tiny_bundle: Bundle) -> None:
    seen: list[int] = []

    def ready() -> None:
        seen.append(gc.get_freeze_count())
        os.kill(os.getpid(), signal.SIGTERM)

    gc.unfreeze()  # what was there before the tests
    with closing(create_server(("127.0.0.1", 0))) as listener, EngineHolder.open(tiny_bundle.path, SETTINGS) as serving:
        serve(Collections({serving.name: serving}), [listener], ready)
    assert seen[0] > 10_000
