"""Another bundle takes over while requests go on: no answer of two versions, no failure, and nothing left behind."""

import errno
import math
import os
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.collections import collections
from lightretriever.service.collections.collections import EngineHolder, freeze_gc
from lightretriever.service.errors import BundleRefusedError, NotReadyError
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import client_of_folder
from tests.service.process import flip
from tests.support.asking import samples
from tests.support.legs import GatedLeg
from tests.support.tampering import edit_manifest, spoil_vector
from tests.support.tiny import TinyDocument, make_tiny_bundle
from tests.support.waiting import wait_until
from tests.support.wordings import raises

SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=1, search_threads=4, watch_s=0)
BODY = {"query": "play music", "k": 5}


def named(path: Path, name: str) -> Bundle:
    """A bundle whose documents carry its name in id and title."""
    corpus = [TinyDocument(f"{name}-{number}", f"music {name}", "play music", 2000) for number in range(20)]
    return make_tiny_bundle(path, documents=corpus, tasks=("default",))


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("versions")
    return {name: named(root / name, name).path for name in ("one", "two")}


@pytest.fixture
def current(versions: dict[str, Path], tmp_path: Path) -> Path:
    """What is served: a link to version one."""
    link = tmp_path / "current"
    link.symlink_to(versions["one"])
    return link


def holder(client: TestClient) -> EngineHolder:
    found: EngineHolder = client.app.state.collections.first  # type: ignore[attr-defined]
    return found


def reload(client: TestClient) -> bool:
    """What `POST /admin/reload` does, without its key."""
    assert client.portal is not None
    return client.portal.call(holder(client).reload)


def version_of(answer: dict[str, Any]) -> str:
    """The one version that all hits of an answer are of."""
    assert len(answer["hits"]) == 5
    (name,) = {hit["id"].partition("-")[0] for hit in answer["hits"]}
    assert {hit["fields"]["title"] for hit in answer["hits"]} == {f"music {name}"}
    return str(name)


def served(client: TestClient) -> str:
    return version_of(client.post("/search", json=BODY).json())


def swaps(client: TestClient) -> tuple[float, float]:
    """How many were taken over, and how many refused."""
    found = samples(holder(client).metrics.text().decode())
    return found["swaps_total", "swapped"], found["swaps_total", "refused"]


@pytest.fixture
def client(current: Path) -> Iterator[TestClient]:
    with client_of_folder(current, SETTINGS) as client:
        yield client


def test_an_engine_of_a_frozen_heap_is_freed(client: TestClient, current: Path, versions: dict[str, Path]) -> None:
    engine = holder(client).engine
    engine.itself = engine  # type: ignore[attr-defined]  # only the collector can end it
    first = weakref.ref(engine)
    del engine
    freeze_gc()
    flip(current, versions["two"])
    assert reload(client)
    assert not reload(client)  # it waits until the old one is closed
    assert first() is None


def test_a_request_in_flight_ends_with_the_engine_it_began_with(
    client: TestClient, current: Path, versions: dict[str, Path], gate: threading.Event
) -> None:
    engine = holder(client).engine
    wait_until(lambda: client.get("/readyz").status_code == 200)
    leg = GatedLeg(engine, "dense", gate)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(lambda: client.post("/search", json=BODY).json())
        assert leg.entered.acquire(timeout=60)
        flip(current, versions["two"])
        assert reload(client)
        assert served(client) == "two"
        engine.require_ready()  # not closed: the slow request still uses it
        gate.set()
        assert version_of(slow.result()) == "one"
    assert not reload(client)
    with raises(Exception):
        engine.require_ready()


def damaged(versions: dict[str, Path], tmp_path: Path, what: str) -> Path:
    path = tmp_path / what
    if what == "itself":
        path.symlink_to(path)
    if what in ("missing", "itself"):
        return path
    shutil.copytree(versions["two"], path)
    if what in ("nan", "huge"):
        spoil_vector(path, math.nan if what == "nan" else 1e9)
    else:
        change: dict[str, Any] = {"format_version": 99} if what == "newer" else {"fields": {"title": "number"}}
        edit_manifest(path, lambda record: record.update(change))
    return path


def test_a_bad_bundle_is_refused_and_the_old_one_serves(
    client: TestClient,
    current: Path,
    versions: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = 0
    for what in ("newer", "missing", "itself", "nan", "huge", "kind of a field"):
        flip(current, damaged(versions, tmp_path, what))
        for _ in range(2):
            refusals += 1
            with raises(BundleRefusedError):
                reload(client)
            assert swaps(client) == (0, refusals), what
        assert served(client) == "one"
    assert [record.message for record in caplog.records].count("bundle refused") == refusals
    flip(current, versions["two"])
    with monkeypatch.context() as patched, raises(BundleRefusedError):
        patched.setattr(SearchEngine, "warm_up", lambda *_: 1 / 0)  # a leg that fails, say
        reload(client)
    assert served(client) == "one"
    assert reload(client)
    assert served(client) == "two"
    found = samples(client.get("/metrics").text)
    assert (found["search_seconds_count",], found["ready",]) == (8, 1)  # they go on
    (labels,) = (key for key in found if key[0] == "bundle_info")
    assert client.get("/info").json()["bundle"]["version"] in labels


def test_a_folder_that_changes_while_it_is_opened_is_refused(
    versions: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, opened = Path(shutil.copytree(versions["one"], tmp_path / "bundle")), SearchEngine.open

    def touch(*arguments: Any, **options: Any) -> SearchEngine:
        engine = opened(*arguments, **options)
        (folder / "manifest.json").touch()
        return engine

    with client_of_folder(folder, SETTINGS) as client:
        folder.rename(tmp_path / "before")
        shutil.copytree(versions["two"], folder)
        with monkeypatch.context() as patched, raises(BundleRefusedError):
            patched.setattr(SearchEngine, "open", touch)
            reload(client)
        assert served(client) == "one"
        assert reload(client)
        assert served(client) == "two"


def test_the_folder_is_watched(versions: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(versions["one"], tmp_path / "bundle"))
    with client_of_folder(folder, SETTINGS.model_copy(update={"watch_s": 0.5})) as client:
        assert served(client) == "one"
        shutil.copytree(versions["two"], tmp_path / "new")
        folder.rename(tmp_path / "old")
        (tmp_path / "new").rename(folder)
        wait_until(lambda: served(client) == "two")
        # What is refused is refused once, and tried again when it changes.
        bad = Path(shutil.copytree(versions["one"], tmp_path / "bad"))
        (bad / "manifest.json").write_bytes(b"{")
        folder.rename(tmp_path / "older")
        bad.rename(folder)
        wait_until(lambda: swaps(client) == (1, 1))
        sleep(2)
        assert swaps(client) == (1, 1)
        assert served(client) == "two"
        shutil.copy(versions["one"] / "manifest.json", folder)
        wait_until(lambda: served(client) == "one")


def test_it_stops_during_the_warm_up(current: Path, versions: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    entered, others = threading.Event(), threading.enumerate()
    warm_up = SearchEngine.warm_up

    def slow(engine: SearchEngine, stop: threading.Event, share: float = 1.0) -> None:
        if engine.bundle.path.name == "two":
            entered.set()
            assert stop.wait(60)
        warm_up(engine, stop, share)

    monkeypatch.setattr(SearchEngine, "warm_up", slow)
    with client_of_folder(current, SETTINGS) as client:
        flip(current, versions["two"])
        assert client.portal is not None
        asked = client.portal.start_task_soon(holder(client).reload)
        assert entered.wait(60)
    with raises(NotReadyError):
        asked.result(60)
    assert swaps(client) == (0, 0)
    assert not any(thread.name == "swap" for thread in threading.enumerate() if thread not in others)


@pytest.mark.parametrize("part", ["publish", "close"])
def test_what_fails_after_a_swap_ends_neither_it_nor_the_watch(
    client: TestClient, current: Path, versions: dict[str, Path], monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    real = getattr(SearchEngine, part)

    def fail(*arguments: Any) -> None:
        real(*arguments)
        raise OSError(errno.ENOSPC, "No space left on device") if part == "publish" else RuntimeError("unknown")

    with monkeypatch.context() as patched:
        patched.setattr(SearchEngine, part, fail)
        flip(current, versions["two"])
        assert reload(client)
        assert served(client) == "two"
        assert not reload(client)
    flip(current, versions["one"])
    assert reload(client)
    assert served(client) == "one"


@pytest.mark.parametrize("touched", [False, True])
def test_a_bundle_that_was_refused_is_tried_again_later_and_when_its_permissions_change(
    versions: dict[str, Path], current: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, touched: bool
) -> None:
    failed = threading.Event()
    two = Path(shutil.copytree(versions["two"], tmp_path / "two"))
    monkeypatch.setattr(collections, "_RETRY_S", 3600 if touched else 0.5)
    with client_of_folder(current, SETTINGS.model_copy(update={"watch_s": 0.2})) as client:
        assert served(client) == "one"
        with monkeypatch.context() as patched:
            patched.setattr(SearchEngine, "open", too_many_files(failed))
            flip(current, two)
            assert failed.wait(60)
        if touched:  # changed permissions change no other time of a file
            (two / "manifest.json").chmod(0o640)
        wait_until(lambda: served(client) == "two")


def too_many_files(told: threading.Event) -> Callable[..., Any]:
    """A function that fails for want of descriptors, and tells that it was called."""

    def fail(*arguments: Any, **options: Any) -> Any:
        told.set()
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    return fail


def test_a_folder_that_can_not_be_looked_into_now_is_no_other_bundle(
    versions: dict[str, Path], current: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked = threading.Event()
    with client_of_folder(current, SETTINGS.model_copy(update={"watch_s": 0.1})) as client:
        assert served(client) == "one"
        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", too_many_files(looked))
            for _ in range(3):
                looked.clear()
                assert looked.wait(60)
        assert swaps(client) == (0, 0)
        flip(current, versions["two"])
        wait_until(lambda: served(client) == "two")
    assert "bundle refused" not in [record.message for record in caplog.records]
    assert "the bundle's folder can't be read now" in [record.message for record in caplog.records]
