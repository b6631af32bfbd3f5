"""kill -9: of a server in the middle of a swap, of one worker of two under load, and of a process that writes to a
journal: what it acknowledged is there, and nothing in part."""

import json
import os
import random
import signal
from collections import Counter
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event, Lock, Thread
from time import perf_counter, sleep

import httpx2
import numpy as np
import orjson
import pytest

from lightretriever.artifacts.bundle.manifest import read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.live import journal as journals
from lightretriever.artifacts.live.journal import Journal, Record
from tests.faults.commands import FORKS
from tests.faults.conftest import Figure
from tests.faults.traffic import ask, clients, elsewhere, searches
from tests.service.process import Place, Server, flip
from tests.service.test_workers import children, gone
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

BODIES = searches(12)
LOADED = 24
SECONDS = 15
ESTABLISHED = "01"  # in /proc/net/tcp


def whole_answers(place: Place, url: str) -> list[bytes]:
    """What is answered now, without what passes."""
    found = clients(url, [ask("POST", "/search", body, key=place.key) for body in BODIES], 1)
    assert {answer.status for answer in found} == {200}
    return [answer.digest for answer in found]


def swap_seconds(place: Place, url: str) -> float:
    began = perf_counter()
    assert place.swap(url, 1).json()["swapped"]
    assert place.swap(url, 0).json()["swapped"]
    return (perf_counter() - began) / 2


def kill_in_a_swap(place: Place, server: Server, url: str, version: int, after_s: float) -> list[bytes]:
    """Kill the server some time after it was told of a version; give what it answered until then."""
    over, found = Event(), list[bytes]()
    asks = [ask("POST", "/search", BODIES[0], key=place.key)]

    def keep_asking() -> None:
        while not over.is_set():
            found.extend(answer.digest for answer in clients(url, asks, 1) if answer.status == 200)

    def reload() -> None:
        with suppress(httpx2.TransportError):
            httpx2.post(f"{url}/admin/reload", headers=place.headers, timeout=60)

    threads = [Thread(target=keep_asking), Thread(target=reload)]
    flip(place.link, place.versions[version])
    for thread in threads:
        thread.start()
    sleep(after_s)
    server.process.kill()
    over.set()
    for thread in threads:
        thread.join()
    return found


def test_a_server_killed_in_a_swap_starts_again_with_one_whole_version(
    full: bool, figure: Figure, place: Place
) -> None:
    kills, chance = 100 if full else 3, random.Random(3)
    with place.served(deadline_ms=60_000, warm_up_queries=1) as (_, url):
        whole = {0: whole_answers(place, url)}
        place.swap(url, 1)
        whole[1] = whole_answers(place, url)
        place.swap(url, 0)
        longest = swap_seconds(place, url)
    assert whole[0] != whole[1]
    served = Counter[str]()
    for number in range(kills):
        version = (number + 1) % 2
        with place.served(deadline_ms=60_000, warm_up_queries=1) as (server, url):
            # What the link led to when the one before was killed, whole.
            assert whole_answers(place, url) == whole[1 - version]
            seen = kill_in_a_swap(place, server, url, version, chance.uniform(0, 3 * longest))
            assert set(seen) <= {whole[0][0], whole[1][0]}
            served["new" if seen and seen[-1] == whole[version][0] else "old"] += 1
    with place.served(deadline_ms=60_000, warm_up_queries=1) as (_, url):
        assert whole_answers(place, url) == whole[kills % 2]
    figure("kills_in_a_swap_failed", 0, "starts", kills=kills, seconds_of_a_swap=round(longest, 2), last_seen=served)


def connections(pid: int, url: str) -> int:
    """How many connections of clients a process has, as the kernel tells."""
    port = f":{int(url.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{line[9]}]" for line in lines if line[1].endswith(port) and line[3] == ESTABLISHED}
    held = set[str]()
    for name in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            held.add(str(name.readlink()))
    return len(inodes & held)


def kill_a_worker(place: Place, server: Server, url: str) -> int:
    """Kill the worker that has most of the busy connections, and wait until it is replaced; give how many it had."""
    pids = children(server)
    asks = [ask("POST", "/search", body, key=place.key) for body in BODIES]
    with elsewhere(clients, url, asks, LOADED, SECONDS) as traffic:
        wait_until(lambda: sum(connections(pid, url) for pid in pids) == LOADED)
        sleep(1)
        survivor, victim = sorted(pids, key=lambda pid: connections(pid, url))
        lost = connections(victim, url)
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: gone(victim))
        # New connections are taken by the one that is left.
        for _ in range(5):
            assert httpx2.post(f"{url}/search", json=BODIES[0], headers=place.headers, timeout=60).status_code == 200
        assert not traffic.done()
        wait_until(lambda: len(children(server)) == 2 and victim not in children(server))
        wait_until(lambda: "\nlightretriever_ready 1.0" in httpx2.get(f"{url}/metrics", timeout=60).text)
        answers = traffic.result()
    assert survivor in children(server)
    # The killed worker loses at most one request of each of its connections; no other request fails.
    failed = [answer.status for answer in answers if answer.status != 200]
    assert 0 < len(failed) <= lost
    assert set(failed) == {0}
    return len(failed)


def test_a_worker_killed_under_load_is_replaced_and_the_other_answers(full: bool, figure: Figure, place: Place) -> None:
    kills = 10 if full else 1
    with place.served(workers=2, deadline_ms=60_000, warm_up_queries=50) as (server, url):
        died = [kill_a_worker(place, server, url) for _ in range(kills)]
    figure("workers_killed_other_failures", 0, "requests", kills=kills, died_with_their_worker=sum(died))


def write(bundle: Path, folder: Path, name: str, told: "Connection[str, str]") -> None:
    """Write groups of records with three threads, and tell each group that was acknowledged, until it is killed."""
    vars(journals)["_LOG_BYTES"] = 100_000  # the log is written back often
    manifest, telling = read_manifest(bundle), Lock()

    def tell(text: str) -> None:
        with telling:
            told.send(text)

    def one(thread: int) -> None:
        journal, chance = Journal(folder, manifest), random.Random(f"{name}-{thread}")
        for number in count():
            size = chance.choice([1, 1, 5, 200])
            group = f"{name}-{thread}-{number}"
            vector = np.full(manifest.dimension, manifest.dimension**-0.5, np.float32)
            ids = [f"{group}/{place}/{size}" for place in range(size)]
            raws = (orjson.dumps({"_id": one, "text": chance.randint(1, 200) * f"{one} "}) for one in ids)
            records = [Record(one, raw, vector, {"w": 7}) for one, raw in zip(ids, raws, strict=True)]
            with journal.writing(perf_counter() + 60), journal.appending(records):
                pass
            tell(group)

    threads = [Thread(target=one, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    tell("ready")


def killed(bundle: Bundle, folder: Path, name: str, after_s: float) -> set[str]:
    """Start a writer, kill it some time after it is ready, and give the groups that it acknowledged."""
    listening, told = FORKS.Pipe(duplex=False)
    writer = FORKS.Process(target=write, args=(bundle.path, folder, name, told))
    writer.start()
    told.close()
    said = [listening.recv()]
    sleep(after_s)
    writer.kill()
    with suppress(EOFError):
        while True:
            said.append(listening.recv())
    writer.join()
    listening.close()
    return set(said) - {"ready"}


def groups_of(records: list[Record]) -> dict[str, int]:
    """Count the records of each group, and check that each group is whole."""
    found = Counter[str]()
    for record in records:
        group, _, size = record.id.split("/")
        found[group] += 1
        assert record.raw is not None
        assert set(json.loads(record.raw)["text"].split()) == {record.id}
        assert int(size) in (1, 5, 200)
    for record in records:
        group, _, size = record.id.split("/")
        assert found[group] == int(size), group
    return found


def test_a_killed_writer_loses_nothing_and_leaves_nothing_in_part(
    full: bool, figure: Figure, tiny_bundle: Bundle, tmp_path: Path
) -> None:
    kills, chance, acknowledged, lost = 1000 if full else 10, random.Random(4), 0, 0
    for kill in range(kills):
        folder = tmp_path / f"live-{kill // 10}"  # ten kills one after the other on each journal
        told = killed(tiny_bundle, folder, str(kill), chance.uniform(0, 0.15))
        with Journal(folder, tiny_bundle.manifest) as journal, journal.writing(perf_counter() + 60) as records:
            found = groups_of(records)
        acknowledged += len(told)
        lost += len(told - found.keys())
        assert lost == 0, told - found.keys()
    assert acknowledged > kills
    figure("live_acknowledged_lost", lost, "writes", kills=kills, acknowledged=acknowledged)
