"""Real servers with a journal: killed at any moment, several at once, on a full disk."""

import json
import random
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from time import perf_counter, sleep
from typing import Any

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.live.folder import Follower
from lightretriever.service.client import AnswerError, SearchClient, UnreachableError
from lightretriever.service.http.app import create_app
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import live
from tests.service.process import Server
from tests.support.keys import keys_file
from tests.support.tiny import make_tiny_bundle
from tests.support.waiting import wait_until
from tests.support.written import ENTRIES, KEY, VECTOR, changeable, opened


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("live") / "tiny", vocabulary="words", documents=40)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    keys = keys_file(tmp_path, *ENTRIES)
    return Settings(live=tmp_path / "live", api_keys_file=keys, deadline_ms=60_000, warm_up_queries=1, watch_s=0)


def fields_of(number: int, version: int) -> dict[str, Any]:
    return {"title": f"zebra {number}", "text": f"The zebra number {number}, version {version}.", "year": version}


def put(client: SearchClient, number: int, version: int) -> None:
    impacts = {"zebra": 100 + version, f"n{number}": 50}
    client.put_document(f"z-{number}", fields_of(number, version), vector=VECTOR, impacts=impacts)


def write_until_killed(server: Server, after_s: float, writers: int, first: int) -> dict[int, int | None]:
    """Write with several clients until the server dies; give the last acknowledged version of each document, None for
    one whose deletion was, and leave out those whose last write is open. It is killed `after_s` seconds after the first
    acknowledgement."""
    begun = Event()

    def write(writer: int) -> dict[int, int | None]:
        known: dict[int, int | None] = {}
        with SearchClient(server.url, api_key=KEY, timeout_s=60) as client:
            for version in range(first, first + 100_000):
                number = writer * 10 + version % 10
                try:
                    if version % 7 == 6 and known.get(number) is not None:
                        client.delete_document(f"z-{number}")
                        known[number] = None
                    else:
                        put(client, number, version)
                        known[number] = version
                    begun.set()
                except (UnreachableError, AnswerError):
                    known.pop(number, None)
                    return known
        return known

    with ThreadPoolExecutor(writers) as threads:
        found = threads.map(write, range(writers))
        begun.wait(120)
        sleep(after_s)
        server.process.kill()
    return {number: version for one in found for number, version in one.items()}


def check(bundle: Bundle, settings: Settings, expected: dict[int, int | None]) -> None:
    """Open the journal, and compare every document with what was acknowledged of it."""
    with SearchEngine.open(bundle, settings) as engine:
        documents = changeable(engine)
        for number, version in expected.items():
            stored = documents.get(f"z-{number}", perf_counter() + 60)
            if version is None:
                assert stored is None, number
                continue
            assert stored is not None, number
            assert json.loads(stored.raw) == {"_id": f"z-{number}"} | fields_of(number, version)
            assert engine.terms(f"z-{number}").terms[0].impact == 100 + version


@pytest.mark.parametrize("kills", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_kill_9_loses_nothing_that_was_acknowledged(bundle: Bundle, settings: Settings, kills: int) -> None:
    names = {"LIGHTRETRIEVER_LIVE": settings.live, "LIGHTRETRIEVER_API_KEYS_FILE": settings.api_keys_file}
    environment = {name: str(value) for name, value in names.items()}
    for kill in range(kills):
        with Server(bundle.path, environment=environment, workers=1) as server:
            expected = write_until_killed(server, random.uniform(0.05, 0.75), writers=3, first=kill * 1000)
        assert expected
        check(bundle, settings, expected)
        with opened(bundle, settings) as client:  # waits for no process that is gone
            assert client.put_document("after", fields_of(0, kill), vector=VECTOR, impacts={"zebra": 1}, wait=True)


def test_waiting_for_another_process_holds_no_thread_that_searches_need(
    bundle: Bundle, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a frozen process, which never tells that it has read the journal, and beside one that replays it."""
    monkeypatch.setattr("lightretriever.service.search.live.REFRESH_S", 30.0)
    monkeypatch.setattr("lightretriever.service.http.documents.REFRESH_S", 30.0)
    own = settings.model_copy(update={"search_threads": 1, "max_waiting": 4, "deadline_ms": 5_000})
    path, encoded = "/documents/z-{}?refresh=wait_for", {"vector": VECTOR, "impacts": {"zebra": 5}}
    with (
        SearchEngine.open(bundle, own) as engine,
        live(create_app(engine)) as url,
        SearchClient(url, api_key=KEY, timeout_s=60) as client,
        ThreadPoolExecutor(20) as threads,
    ):

        def write(number: int) -> int:
            body = {"fields": fields_of(number, 1), **encoded}
            headers = {"authorization": f"Bearer {KEY}"}
            return httpx2.put(url + path.format(number), json=body, headers=headers, timeout=60).status_code

        starting = Follower(tmp_path / "live")
        assert write(0) == 200
        starting.tell(0)  # from now on it searches
        late = list[Future[int]]()
        for number in range(1, 21):  # more than there are places for requests
            late.append(threads.submit(write, number))
            wait_until(lambda number=number: is_there(client, f"z-{number}"))  # type: ignore[misc]
        for _ in range(30):
            assert client.search("zebra", mode="sparse", k=30).hits
        put(client, 30, 1)
        assert not [one for one in late if one.done()]
        starting.tell(21)
        assert {one.result() for one in late} == {200}
        starting.tell(0)
        monkeypatch.setattr("lightretriever.service.search.live.REFRESH_S", -4.0)
        looks, followed = list[int](), Follower.followed

        def counted(follower: Follower, sequence: int) -> bool:
            looks.append(sequence)
            return followed(follower, sequence)

        monkeypatch.setattr(Follower, "followed", counted)
        assert write(40) == 504
        assert len(looks) < 12  # in a second: any number of requests may wait, and each look reads files
        assert is_there(client, "z-40")
        starting.close()


def test_a_service_that_stops_says_that_a_waiting_change_was_made(
    bundle: Bundle, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "shutdown_grace_s", 1)
    body = {"fields": fields_of(0, 1), "vector": VECTOR, "impacts": {"zebra": 5}}
    with ThreadPoolExecutor(1) as threads, SearchEngine.open(bundle, settings) as engine:
        frozen = Follower(tmp_path / "live")
        frozen.tell(0)
        with live(create_app(engine)) as url, SearchClient(url, api_key=KEY, timeout_s=60) as client:
            path, headers = f"{url}/documents/z-0?refresh=wait_for", {"authorization": f"Bearer {KEY}"}
            late = threads.submit(httpx2.put, path, json=body, headers=headers, timeout=60)
            wait_until(lambda: is_there(client, "z-0"))
        assert (late.result().status_code, late.result().json()["kind"]) == (504, "deadline_exceeded")
        assert "The change was made" in late.result().json()["detail"]
        frozen.close()


def is_there(client: SearchClient, document_id: str) -> bool:
    try:
        return bool(client.document(document_id))
    except AnswerError:
        return False
