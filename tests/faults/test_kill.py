"""kill -9: of a server in the middle of a swap, and of one worker of two under load."""

import json
import os
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, sleep
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.faults.conftest import Figure
from tests.faults.mix import searches
from tests.faults.traffic import ask, clients
from tests.service.place import Place
from tests.service.process import Server
from tests.service.test_swap import flip
from tests.service.test_workers import children, gone
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

BODIES = searches(12)
LINES = 12


def answers(place: Place, url: str) -> list[bytes]:
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
        whole = {0: answers(place, url)}
        place.swap(url, 1)
        whole[1] = answers(place, url)
        place.swap(url, 0)
        longest = swap_seconds(place, url)
    assert whole[0] != whole[1]
    served = Counter[str]()
    for number in range(kills):
        version = (number + 1) % 2
        with place.served(deadline_ms=60_000, warm_up_queries=1) as (server, url):
            # What the link led to when the one before was killed, whole.
            assert answers(place, url) == whole[1 - version]
            seen = kill_in_a_swap(place, server, url, version, chance.uniform(0, 3 * longest))
            assert set(seen) <= {whole[0][0], whole[1][0]}
            served["new" if seen and seen[-1] == whole[version][0] else "old"] += 1
    with place.served(deadline_ms=60_000, warm_up_queries=1) as (_, url):
        assert answers(place, url) == whole[kills % 2]
    figure("kills_in_a_swap_failed", 0, "starts", kills=kills, seconds_of_a_swap=round(longest, 2), last_seen=served)


class Line(NamedTuple):
    """A connection, which worker has it, and since when."""

    http: HTTPConnection
    pid: int
    since: float


class Told(NamedTuple):
    """What became of a request: by which worker, when it was sent and ended, and with which status; 0: it died."""

    pid: int
    sent: float
    ended: float
    status: int


def owner(pids: Sequence[int], port: int, client_port: int) -> int:
    """The process that holds the other end of a connection, as the kernel tells it; 0 if none does (yet)."""
    wanted = (f"{port:04X}", f"{client_port:04X}")
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, *_, inode = line.split()[:10]
        if (local.rpartition(":")[2], remote.rpartition(":")[2]) == wanted:
            return next((pid for pid in pids if f"socket:[{inode}]" in links(pid)), 0)
    return 0


def links(pid: int) -> Iterator[str]:
    for name in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield str(name.readlink())


def open_line(pids: Sequence[int], url: str) -> Line:
    port = int(url.rpartition(":")[2])
    http = HTTPConnection("127.0.0.1", port, timeout=60)
    http.request("GET", "/livez")
    http.getresponse().read()
    pid = owner(pids, port, http.sock.getsockname()[1])
    assert pid
    return Line(http, pid, perf_counter())


@contextmanager
def lines_to_both(pids: Sequence[int], url: str) -> Iterator[list[Line]]:
    """Connections to each of two workers, `LINES` or a few more: the kernel decides who takes one, and a worker takes
    none before it serves."""
    with ExitStack() as stack:
        lines: list[Line] = []
        while len(lines) < LINES or {line.pid for line in lines} != set(pids):
            line = open_line(pids, url)
            stack.callback(line.http.close)
            # The server closes what is idle for 75 s.
            lines = [one for one in lines if one.since > line.since - 2]
            if sum(one.pid == line.pid for one in lines) < LINES:
                lines.append(line)
            else:
                line.http.close()
                sleep(0.05)
        yield lines


def talk(line: Line, headers: dict[str, str], over: Event) -> list[Told]:
    """Ask over one connection, until it is over or the connection is."""
    told: list[Told] = []
    bodies: list[dict[str, Any]] = BODIES
    while not over.is_set():
        sent, status = perf_counter(), 0
        body = json.dumps(bodies[len(told) % len(bodies)])
        try:
            line.http.request("POST", "/search", body, headers | {"content-type": "application/json"})
            answer = line.http.getresponse()
            answer.read()
            status = answer.status
        except (HTTPException, OSError):
            pass
        told.append(Told(line.pid, sent, perf_counter(), status))
        if status == 0:
            break
    line.http.close()
    return told


def kill_a_worker(place: Place, server: Server, url: str, victim: int) -> list[Told]:
    """Kill a worker while all connections are busy, go on until it is replaced; give what the connections saw."""
    pids, over = children(server), Event()
    with lines_to_both(pids, url) as lines, ThreadPoolExecutor(len(lines)) as pool:
        talks = [pool.submit(talk, line, place.headers, over) for line in lines]
        sleep(1)
        killed = perf_counter()
        os.kill(pids[victim], signal.SIGKILL)
        wait_until(lambda: gone(pids[victim]))
        dead = perf_counter()
        # New connections are taken by the one that is left.
        for _ in range(5):
            assert httpx2.post(f"{url}/search", json=BODIES[0], headers=place.headers, timeout=60).status_code == 200
        wait_until(lambda: len(children(server)) == 2 and pids[victim] not in children(server))
        wait_until(lambda: "\nlightretriever_ready 1.0" in httpx2.get(f"{url}/metrics", timeout=60).text)
        over.set()
        told = [one for future in talks for one in future.result()]
    survivor = pids[1 - victim]
    assert survivor in children(server)
    assert {one.status for one in told if one.pid == survivor} == {200}
    assert max(one.sent for one in told if one.pid == survivor) > dead
    died = [one for one in told if one.status != 200]
    # Those on the killed worker that were under way, one of each of its connections at most.
    assert all((one.pid, one.status) == (pids[victim], 0) and one.ended >= killed for one in died)
    assert len(died) == sum(line.pid == pids[victim] for line in lines)
    return died


def test_a_worker_killed_under_load_is_replaced_and_the_other_answers(full: bool, figure: Figure, place: Place) -> None:
    kills = 10 if full else 1
    with place.served(workers=2, deadline_ms=60_000, warm_up_queries=50) as (server, url):
        died = [len(kill_a_worker(place, server, url, number % 2)) for number in range(kills)]
    figure("workers_killed_other_failures", 0, "requests", kills=kills, died_with_their_worker=sum(died))
