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
from starlette.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.collections.collections import Collections, EngineHolder
from lightretriever.service.errors import DeadlineError, NotReadyError, SearchFailedError
from lightretriever.service.http.app import create_app
from lightretriever.service.schemas import Plain
from lightretriever.service.search import pipeline
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.request import SearchContext
from lightretriever.service.serving.server import serve
from lightretriever.service.settings import Settings
from tests.service.live import client_of_folder
from tests.support.wordings import raises

SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=1)


def open_search_close(bundle: Bundle) -> None:
    with client_of_folder(bundle.path, SETTINGS) as client:
        assert len(client.post("/search", json={"query": "play music"}).json()["hits"]) == 10


def resources() -> tuple[int, int]:
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir()), threading.active_count()


@pytest.mark.slow
def test_twenty_openings_leave_no_descriptors_and_no_threads(tiny_bundle: Bundle) -> None:
    open_search_close(tiny_bundle)
    descriptors, threads = resources()
    for _ in range(20):
        open_search_close(tiny_bundle)
    after = resources()
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


def test_the_warm_up_ends_by_number_or_by_time(tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[int] = []
    run = pipeline.search

    def count(context: SearchContext) -> Plain:
        searches.append(1)
        return run(context)

    monkeypatch.setattr("lightretriever.service.search.engine.search", count)
    for queries, seconds, most in ((7, 600.0, 7), (1_000_000, 1e-6, 1)):
        searches.clear()
        monkeypatch.setattr(Settings, "warm_up_s", seconds)
        with SearchEngine.open(tiny_bundle, Settings(deadline_ms=60_000, warm_up_queries=queries)) as engine:
            engine.warm_up()
            engine.require_ready()
        assert len(searches) == most


def test_a_warm_up_goes_on_after_two_late_searches_but_not_three(
    tiny_bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[bool] = []
    run, late = pipeline.search, 2

    def busy(context: SearchContext) -> Plain:
        searches.append(len(searches) >= late)
        if not searches[-1]:
            raise DeadlineError("The legs did not answer in time.")
        return run(context)

    monkeypatch.setattr("lightretriever.service.search.engine.search", busy)
    monkeypatch.setattr(Settings, "warm_up_s", 1e-6)
    with SearchEngine.open(tiny_bundle, Settings(deadline_ms=60_000, warm_up_queries=2)) as engine:
        engine.warm_up()
        engine.require_ready()
        assert searches == [False, False, True]
    searches.clear()
    late = 3
    with SearchEngine.open(tiny_bundle, Settings(deadline_ms=60_000, warm_up_queries=2)) as engine:
        with pytest.raises(DeadlineError):
            engine.warm_up()
        with raises(NotReadyError):
            engine.require_ready()


class Stopping(threading.Event):
    """Is set as soon as somebody waits for it."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return super().wait(timeout)


def test_a_warm_up_that_is_stopped_in_its_last_pause_leaves_the_engine_cold(tiny_bundle: Bundle) -> None:
    with SearchEngine.open(tiny_bundle, SETTINGS) as engine:
        stop = Stopping()
        engine.warm_up(stop, share=0.5)
        assert stop.is_set()
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
