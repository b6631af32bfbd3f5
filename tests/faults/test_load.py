"""Load on a real server. The same requests one by one and many at a time have the same answers; `/livez` answers beside
the most expensive ones; of more than the service can do, what is accepted is answered in time and the rest is refused;
under mixed load with swaps every answer is right, and the process grows by nothing.
"""

import gzip
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any, Final
from urllib.parse import quote

import httpx2
import numpy as np
import orjson
import pytest

from lightretriever.artifacts.bundle.reader import unpack
from lightretriever.artifacts.sparse.jvm import SEARCH_HEAP_MB
from lightretriever.service.settings import Settings
from tests.faults.conftest import Figure
from tests.faults.traffic import Answer, Ask, ask, bare, clients, constant_rate, elsewhere, mix, searches
from tests.service.process import Place, flip
from tests.support.machine import Held, held

pytestmark = pytest.mark.slow

CLIENTS = 16
BATCH = 50


def bodies_of(url: str, asks: Sequence[Ask], count: int) -> list[bytes]:
    """The bare answers in the order of the requests, asked by some clients at the same time."""
    with elsewhere(clients, url, asks, count, keep=True) as traffic:
        answers = sorted(traffic.result())
    assert {answer.status for answer in answers} == {200}
    assert [answer.number for answer in answers] == list(range(len(asks)))
    return [bare(answer.body) for answer in answers]


def batches(items: list[Any]) -> list[list[Any]]:
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]


def test_the_same_answers_one_by_one_and_all_at_once(full: bool, figure: Figure, place: Place) -> None:
    count = 2000 if full else 100
    bodies = searches(count, seed=11)
    bodies += bodies[: count // 2]  # there again
    random.Random(11).shuffle(bodies)
    asks = [ask("POST", "/search", body, key=place.key) for body in bodies]
    many = [ask("POST", "/search/batch", {"searches": part}, key=place.key) for part in batches(bodies)]
    # The kernel decides which of two workers takes a connection.
    with place.served(workers=2, deadline_ms=60_000, max_waiting=CLIENTS * BATCH) as (_, url):
        serial = bodies_of(url, asks, 1)
        assert len(set(serial)) > len(serial) / 2
        rounds = 10 if full else 1
        together = [bodies_of(url, asks, CLIENTS) for _ in range(rounds)]
        batched = [bodies_of(url, many, count) for count in (1, CLIENTS)]
    assert all(one == serial for one in together)
    joined = [b'{"results":[' + b",".join(part) + b"]}" for part in batches(serial)]
    assert batched == [joined, joined]
    different = sum(a != b for one in together for a, b in zip(one, serial, strict=True))
    figure("concurrent_differences", different, "answers", compared=rounds * len(asks), in_batches=2 * len(asks))


BESIDE: Final = 2
EVERY_S: Final = 0.02
DEFAULTS: Final = Settings()
WORDS: Final = ("terminal", "music", "player", "library", "network", "images", "converts", "compresses", "parser")
# Answers of a service that holds its bounds and its deadline.
RIGHT: Final = {200, 413, 422, 503, 504}


def text(length: int) -> str:
    """Words with many different tokens, of so many characters."""
    return " ".join(f"{WORDS[i % len(WORDS)]} {i * 7919 % 9973}" for i in range(length // 5))[:length]


def expensive(ids: Sequence[str], key: str) -> dict[str, Ask]:
    """By key of the figure, the request of an endpoint that costs most."""
    k, most = DEFAULTS.max_candidates, DEFAULTS.max_query_chars
    long, largest = text(most), max(ids, key=len)
    whole: dict[str, Any] = {"query": long, "k": k, "candidates": k, "snippets": {"length": 2000}}
    many = DEFAULTS.max_batch_hits // DEFAULTS.max_batch
    explained = {"query": text(150), "k": DEFAULTS.max_explained // 100, "explain": True}
    condition: dict[str, Any] = {"and": [{"not": {"field": "section", "in": [f"x{i}" for i in range(50)]}}] * 20}
    bodies = {
        "livez_search_ms": ("/search", whole),
        "livez_explain_ms": ("/search", explained),
        "livez_filter_ms": ("/search", whole | {"query": "music player", "filter": condition}),
        "livez_batch_ms": ("/search/batch", {"searches": [whole | {"k": many}] * DEFAULTS.max_batch}),
        "livez_encode_ms": ("/encode", {"text": long}),
        "livez_invalid_ms": ("/search", {"query": "music", "filter": {"field": "section", "in": [{}] * 300_000}}),
    }
    found = {name: ask("POST", path, body, key=key) for name, (path, body) in bodies.items()}
    found |= {"livez_terms_ms": ask("GET", f"/terms/{quote(largest, safe='')}", key=key)}
    found |= {"livez_metrics_ms": ask("GET", "/metrics", key=key)}
    bomb = gzip.compress(bytes(500 * DEFAULTS.max_body_bytes))
    head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json"
    head += f"\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n"
    return found | {"livez_bomb_ms": Ask(head.encode() + bomb)}


def beside(url: str, request: Ask, seconds: float) -> tuple[list[int], list[float]]:
    """Run some clients that send a request again and again, each when the one before is answered: the statuses, and the
    times of `/livez` meanwhile, in seconds."""
    times: list[float] = []
    with elsewhere(clients, url, [request], BESIDE, seconds) as pressed, httpx2.Client(base_url=url) as client:
        while not pressed.done() or not times:
            began = perf_counter()
            assert client.get("/livez", timeout=60).status_code == 200
            times.append(perf_counter() - began)
            sleep(EVERY_S)
        return [answer.status for answer in pressed.result()], times


def test_livez_beside_the_most_expensive_requests(full: bool, figure: Figure, place: Place, tmp_path: Path) -> None:
    """At full length with the demo bundle, else with the tiny one, by the settings' defaults."""
    if full:
        unpack(Path(__file__).parents[2] / "demo" / "bundle.tar.xz", tmp_path / "demo")
        flip(place.link, tmp_path / "demo")
    with place.served() as (_, url):
        found = httpx2.post(f"{url}/search", json={"query": "music", "k": 50}, headers=place.headers).json()
        for name, request in expensive([hit["id"] for hit in found["hits"]], place.key).items():
            statuses, times = beside(url, request, 10 if full else 1)
            assert set(statuses) <= RIGHT, (name, Counter(statuses))
            assert statuses
            p50, p99, longest = (round(1e3 * float(np.percentile(times, share)), 1) for share in (50, 99, 100))
            answered = {str(status): count for status, count in sorted(Counter(statuses).items())}
            figure(name, longest, "ms", p50=p50, p99=p99, asked=len(times), answers=answered)
        assert orjson.loads(httpx2.get(f"{url}/livez").content) == {"status": "alive"}


TIMES = 5
# The deadline counts from when the service has read the head of a request. Before that the request waits in the kernel;
# afterwards the answer is sent, and read by a client that competes for the processor.
ALLOWANCE_S = 1.0
RECOVERY_S = 5.0


def longest(answers: Sequence[Answer]) -> float:
    return max(answer.ended - answer.sent for answer in answers)


def capacity(url: str, asks: Sequence[Ask], seconds: float) -> float:
    """Answers a second when some clients ask as fast as they can."""
    with elsewhere(clients, url, asks, CLIENTS, seconds) as traffic:
        answers = traffic.result()
    return len(answers) / max(answer.ended for answer in answers)


def test_five_times_the_capacity(full: bool, figure: Figure, place: Place) -> None:
    asks = [ask("POST", "/search", body, key=place.key) for body in searches(100)]
    # Other processes may take the processors from the short form.
    deadline_s, seconds = (5, 60) if full else (20, 4)
    with place.served(deadline_ms=deadline_s * 1000) as (_, url):
        right = {answer.number: answer.digest for answer in clients(url, asks, 1)}
        for _ in range(1 if full else 5):  # where others had the processors meanwhile, the capacity is measured again
            able = capacity(url, asks, 10 if full else 3)
            with elsewhere(constant_rate, url, asks, TIMES * able, seconds) as traffic:
                answers = traffic.result()
            ended = monotonic()
            if any(answer.status != 200 for answer in answers):
                break
        (after,) = clients(url, asks[:1], 1)
        recovery = monotonic() - ended + max(one.ended for one in answers) - max(one.due for one in answers)
    accepted = [answer for answer in answers if answer.status == 200]
    refused = [answer for answer in answers if answer.status != 200]
    assert {(one.status, one.kind, one.retry_after) for one in refused} == {(503, "overloaded", "1")}
    assert not any(one.degraded for one in accepted)
    assert all(one.digest == right[one.number] for one in accepted)
    assert (after.status, after.degraded, after.digest) == (200, False, right[0])
    if full:
        assert longest(accepted) <= deadline_s + ALLOWANCE_S
        assert longest(refused) <= deadline_s
        assert recovery <= RECOVERY_S
    # A generator on the same machine may come late with its own requests.
    offered = round(len(answers) / max(one.sent for one in answers) / able, 1)
    figure("overload_failures", 0, "requests", sent=len(answers), accepted=len(accepted), times_of_capacity=offered)
    figure("overload_longest_s", round(longest(accepted), 2), "s")
    p99 = float(np.percentile([answer.ended - answer.sent for answer in refused], 99))
    figure("overload_refused_ms", round(1e3 * p99, 1), "ms")
    figure("overload_goodput", round(len(accepted) / max(one.ended for one in answers) / able, 2), "of capacity")
    figure("overload_recovery_s", round(recovery, 2), "s")


LEAST_SWAPS = 2
GROWTH_MB = 16
# What Java takes of its heap only later would hide what else grows. So all of it is there from the beginning.
WHOLE_HEAP = {"JAVA_TOOL_OPTIONS": f"-Xms{SEARCH_HEAP_MB}m -XX:+AlwaysPreTouch"}
SLACK = 6  # Java opens a file now and then, and a lane starts a thread when it needs one


def right_answers(place: Place, url: str, asks: Sequence[Ask], version: int) -> list[bytes]:
    """What an idle server answers, one request after the other."""
    assert place.swap(url, version).status_code == 200
    answers = clients(url, asks, 1)
    assert [answer.status for answer in answers] == [one.status for one in asks]
    return [answer.digest for answer in answers]


def watch(
    place: Place, server_pid: int, url: str, traffic: "Future[list[Answer]]", pause_s: float
) -> tuple[list[Held], list[float]]:
    """Swap every now and then until the traffic ends; give what the process held meanwhile, and when swaps began."""
    begun = monotonic()
    found, swaps, due = [], list[float](), begun + pause_s
    while not traffic.done():
        found.append(held(server_pid))
        if monotonic() >= due:
            swaps.append(monotonic() - begun)
            answer = place.swap(url, len(swaps) % 2)
            assert (answer.status_code, answer.json()["swapped"]) == (200, True)
            due = monotonic() + pause_s
        sleep(0.25)
    return found, swaps


def test_mixed_load_with_swaps_for_a_long_time(full: bool, figure: Figure, place: Place) -> None:
    """Each client sends its next request when the one before is answered, so the load is what the machine can take."""
    asks = mix(place.key, 400 if full else 200)
    # Other processes may take the processors from the short form at any time.
    seconds, pause_s, deadline_s = (1800, 120, 5) if full else (16, 5, 20)
    with place.served(environment=WHOLE_HEAP, deadline_ms=deadline_s * 1000) as (server, url):
        right = [right_answers(place, url, asks, version) for version in (1, 0)]
        versions = place.versions[0].parent
        before = held(server.process.pid, versions)
        with elsewhere(clients, url, asks, CLIENTS, seconds) as traffic:
            found, swaps = watch(place, server.process.pid, url, traffic, pause_s)
            answers = traffic.result()
        sleep(1)
        after = held(server.process.pid, versions)
    failures = [
        (asks[one.number].request[:200], one)
        for one in answers
        if one.status != asks[one.number].status
        or one.degraded
        or (asks[one.number].same and one.digest not in {digests[one.number] for digests in right})
    ]
    assert not failures, f"{failures[:5]}"  # a text is told in full
    assert len(swaps) >= LEAST_SWAPS
    # Resident memory in each tenth of the time; medians, so without moments of two engines.
    memory = [float(np.median(part)) for part in np.array_split([one.resident_mb for one in found], 10)]
    growth = memory[-1] - memory[1]
    assert growth <= GROWTH_MB, memory
    assert after.descriptors <= before.descriptors + SLACK
    assert after.threads <= before.threads + SLACK
    assert after.mapped <= before.mapped  # no file of a version before
    p99 = float(np.percentile([answer.ended - answer.due for answer in answers], 99)) * 1e3
    figure("soak_requests", len(answers), "requests", swaps=len(swaps))
    figure("soak_rate", round(len(answers) / seconds), "requests/s")
    figure("soak_failures", len(failures), "requests")
    figure("soak_growth_mb", round(growth, 1), "MB", by_tenths=[round(one) for one in memory])
    figure("soak_p99_ms", round(p99, 1), "ms")


BESIDE_MB = 96  # Python's memory of the answers under way, and what Java has beside its heap


def test_large_answers_fill_no_more_than_javas_heap(full: bool, figure: Figure, place: Place) -> None:
    count = 20_000 if full else 400
    large = {"k": 1000, "candidates": 1000, "offset": 0}
    bodies = [one | large for one in searches(200)]
    asks = [ask("POST", "/search", bodies[number % len(bodies)], key=place.key) for number in range(count)]
    with place.served(deadline_ms=60_000) as (server, url):
        before = held(server.process.pid).resident_mb
        with elsewhere(clients, url, asks, 4) as traffic:
            answers = traffic.result()
        after = held(server.process.pid).resident_mb
    assert {answer.status for answer in answers} == {200}
    assert len(answers) == count
    assert after - before <= SEARCH_HEAP_MB + BESIDE_MB
    figure("large_answers", count, "answers")
    figure("large_answers_mb", round(after - before), "MB", before=round(before), after=round(after))
