"""Several processes behind one address: started, counted together, restarted, reloaded and stopped."""

import json
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from typing import Any

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.serving import workers
from lightretriever.service.settings import Settings
from tests.service.process import Place, Server
from tests.service.test_swap import named
from tests.support import asking
from tests.support.tiny import make_tiny_bundle
from tests.support.waiting import wait_until

BODY = {"query": "play music", "k": 3}


def children(server: Server) -> list[int]:
    """The workers: children of the server that are no helper of multiprocessing's."""
    pids = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return [int(pid) for pid in pids if b"spawn_main" in told(int(pid), "cmdline")]


def told(pid: int, file: str) -> bytes:
    """What /proc has of a process in a file; nothing if it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def gone(pid: int) -> bool:
    """True if a process has ended: it is not there, or nobody has asked for its exit status yet."""
    stat = told(pid, "stat")
    return not stat or b") Z " in stat


def all_started(server: Server) -> bool:
    """True if there are two workers and each has said that it started: one that opens its bundle is no worker yet."""
    lines = [json.loads(line) for line in server.errors.splitlines() if line.endswith("}")]
    started = {line["pid"] for line in lines if line["event"] == "worker started"}
    return len(children(server)) == 2 and set(children(server)) <= started


def search(url: str) -> int:
    """One search over a connection of its own, so that any worker may get it."""
    return httpx2.post(f"{url}/search", json=BODY, timeout=60).status_code


def samples(url: str) -> dict[tuple[str, ...], float]:
    return asking.samples(httpx2.get(f"{url}/metrics", timeout=60).text)


def test_two_workers_count_together_and_one_that_ends_dies_hangs_or_can_not_begin_is_replaced(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "bundle")
    with Server(bundle.path, watch_s=0, workers=2) as server:
        url = server.url
        assert " in 2 processes at http://" in server.ready_line
        assert len(children(server)) == 2
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(search, [url] * 60)) == {200}
        assert httpx2.get(f"{url}/documents/nix", timeout=60).status_code == 404
        assert_counted_together(server, bundle)
        leaving = [replaced(server, how) for how in (signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP)]
        first, second = children(server)
        bundle.path.rename(tmp_path / "away")  # so that no other can begin
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: gone(first))
        assert search(url) == 200
        (tmp_path / "away").rename(bundle.path)
        wait_until(lambda: all_started(server))
        workers = children(server)
        assert second in workers
        wait_until(lambda: samples(url)["ready",] == 1)
        server.process.send_signal(signal.SIGINT)
        code, output, errors = server.wait()
    assert (code, output) == (0, "")
    assert all(gone(pid) for pid in workers)
    assert json.loads(errors.splitlines()[-1])["event"] == "stopped"
    assert len({*leaving, first, *workers}) == 6


def assert_counted_together(server: Server, bundle: Bundle) -> None:
    """Assert that 60 searches and an error are counted, whichever worker is asked."""
    url = server.url
    of_search = ("request_seconds_count", "/search", "200")
    counts = (of_search, ("search_seconds_count",), ("stage_seconds_count", "", "encode"))
    wait_until(lambda: all(samples(url).get(name) == 60 for name in counts))
    for _ in range(4):
        found = samples(url)
        assert {found[name] for name in counts} == {60}
        assert found["errors_total", "document_not_found"] == 1
        assert found["ready",] == 1
        assert found["documents",] == 120
        wait_until(lambda: samples(url)["requests_in_flight",] == 1)  # this one; the last may not be over quite yet
        abandoned = {key[1]: value for key, value in found.items() if key[0] == "abandoned_calls"}
        assert abandoned == {"dense": 0, "requests": 0}
        (info,) = [key for key in found if key[0] == "bundle_info"]
        assert bundle.manifest.digest in info
    status = [Path(f"/proc/{pid}/status").read_text() for pid in children(server)]
    alone = [int(re.findall(r"VmSize:\s+(\d+)", text)[0]) * 1024 for text in status]
    assert found["process_virtual_memory_bytes",] > 1.5 * min(alone)


def replaced(server: Server, how: signal.Signals) -> int:
    """Have a worker replaced, and give its process id.

    The other one answers meanwhile, and what the one that is gone had counted still counts.
    """
    leaving = children(server)[0]
    url = server.url
    before = samples(url)["search_seconds_count",]
    assert {search(url) for _ in range(10)} == {200}
    if how != signal.SIGTERM:  # it can't tell any more what it has not told yet
        wait_until(lambda: samples(url)["search_seconds_count",] == before + 10)
    os.kill(leaving, how)
    wait_until(lambda: gone(leaving))
    assert search(url) == 200
    wait_until(lambda: leaving not in children(server) and all_started(server))  # the new one has metrics from here on
    wait_until(lambda: samples(url)["ready",] == 1)
    wait_until(lambda: samples(url)["search_seconds_count",] == before + 11)
    wait_until(lambda: samples(url)["requests_in_flight",] == 1)  # what the one that is gone was doing is over
    return leaving


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Two versions, whose documents tell which one they are of."""
    one, two = (named(tmp_path / name, name).path for name in ("one", "two"))
    return Place(tmp_path, (one, two))


def versions_of(place: Place, url: str) -> set[str]:
    """The versions that answer."""
    asked = [httpx2.post(f"{url}/search", json=BODY, headers=place.headers, timeout=60).json() for _ in range(10)]
    return {hit["id"].partition("-")[0] for answer in asked for hit in answer["hits"]}


def test_a_reload_reaches_all_workers_and_none_outlives_the_parent(place: Place) -> None:
    with place.served(workers=2) as (server, url):
        assert versions_of(place, url) == {"one"}
        assert place.swap(url, 1).json()["swapped"]
        wait_until(lambda: samples(url)["swaps_total", "swapped"] == 2)
        assert versions_of(place, url) == {"two"}
        found = samples(url)
        assert found["swaps_total", "refused"] == 0
        (bundle,) = [key for key in found if key[0] == "bundle_info"]
        assert Bundle.open(place.versions[1]).manifest.digest in bundle
        workers = children(server)
        server.process.kill()
        wait_until(lambda: all(gone(pid) for pid in workers))


@pytest.mark.slow
def test_a_reload_reaches_a_worker_that_is_still_opening_the_version_before(place: Place) -> None:
    with place.served(workers=2) as (server, url):
        before = children(server)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(set(children(server)) - set(before)) == 1)
        (opening,) = set(children(server)) - set(before)
        while str(place.versions[0]) not in Path(f"/proc/{opening}/maps").read_text():
            sleep(0.002)
        os.kill(opening, signal.SIGSTOP)
        assert place.swap(url, 1).json()["swapped"]
        os.kill(opening, signal.SIGCONT)
        # Both have swapped, and no version but the second one is served.
        wait_until(lambda: samples(url)["swaps_total", "swapped"] == 2)
        (bundle,) = [key for key in samples(url) if key[0] == "bundle_info"]
        assert Bundle.open(place.versions[1]).manifest.digest in bundle
        assert versions_of(place, url) == {"two"}


@pytest.mark.parametrize(
    ("granted", "gib", "settings", "expected"),
    [
        *((1, 8.0, {}, 1), (2, 8.0, {}, 2), (64, 8.0, {}, 4), (4, 1.7, {}, 3), (4, 0.25, {}, 1)),
        *((4, 8.0, {"recipe": Path("recipe.yaml")}, 1), (4, 8.0, {"live": Path("live")}, 1)),
    ],
)
def test_how_many_processes_serve_by_default(
    monkeypatch: pytest.MonkeyPatch, granted: int, gib: float, settings: dict[str, Any], expected: int
) -> None:
    monkeypatch.setattr(workers, "processors", lambda: granted)
    monkeypatch.setattr(workers, "memory_bytes", lambda: int(gib * 2**30))
    assert workers.automatic_workers(Settings(**settings)) == expected


def test_one_process_serves_where_no_file_may_have_a_byte() -> None:
    """So that no folder for temporary files can be used."""
    script = """
from lightretriever.service.serving import workers
workers.processors = lambda: 2
print(workers.automatic_workers(workers.Settings()))
"""
    command = ["sh", "-c", 'ulimit -f 0; exec "$0" -c "$1"', sys.executable, script]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "1\n"
