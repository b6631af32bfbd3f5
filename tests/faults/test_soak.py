"""Mixed load for a long time, with swaps: every answer is the right one, and the process grows by nothing. And large
answers: it stays within what docs/sizing.md says."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from statistics import median
from time import monotonic, sleep

import numpy as np
import pytest

from lightretriever.artifacts.sparse.jvm import SEARCH_HEAP_MB
from tests.faults.conftest import Figure
from tests.faults.mix import mix, searches
from tests.faults.traffic import Answer, Ask, ask, clients, elsewhere
from tests.service.place import Place
from tests.support.memory import Held, held

pytestmark = pytest.mark.slow

CLIENTS = 16
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


def memory_mb(found: Sequence[Held]) -> list[float]:
    """Resident memory in each tenth of the time; medians, so without moments of two engines."""
    tenth = len(found) // 10
    return [median(one.resident_mb for one in found[part * tenth :][:tenth]) for part in range(10)]


def wrong(
    answers: Sequence[Answer], asks: Sequence[Ask], right: Sequence[Sequence[bytes]]
) -> Counter[tuple[object, ...]]:
    """Answers with another status than theirs, without a leg, or other than those of either version when idle."""
    found: Counter[tuple[object, ...]] = Counter()
    for answer in answers:
        asked = asks[answer.number]
        same = not asked.same or answer.digest in {digests[answer.number] for digests in right}
        if answer.status != asked.status or answer.degraded or not same:
            found[asked.request[:200], answer.status, answer.kind, answer.degraded, same] += 1
    return found


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
    failures = wrong(answers, asks, right)
    assert not failures, f"{failures.most_common(5)}"  # a text is told in full
    assert len(swaps) >= LEAST_SWAPS
    memory = memory_mb(found)
    growth = memory[-1] - memory[1]
    assert growth <= GROWTH_MB, memory
    assert after.descriptors <= before.descriptors + SLACK
    assert after.threads <= before.threads + SLACK
    assert after.mapped <= before.mapped  # no file of a version before
    p99 = float(np.percentile([answer.ended - answer.due for answer in answers], 99)) * 1e3
    figure("soak_requests", len(answers), "requests", swaps=len(swaps))
    figure("soak_rate", round(len(answers) / seconds), "requests/s")
    figure("soak_failures", failures.total(), "requests")
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
