"""The same requests, one by one and many at a time: the same bytes, but for times."""

import random
from collections.abc import Sequence

import pytest

from tests.faults.conftest import Figure
from tests.faults.mix import searches
from tests.faults.test_kill import connections
from tests.faults.traffic import Answer, Ask, ask, bare, clients, elsewhere
from tests.service.place import Place
from tests.service.test_workers import children

pytestmark = pytest.mark.slow

CLIENTS = 16
BATCH = 50


def requests(place: Place, count: int) -> tuple[list[dict[str, object]], list[Ask]]:
    """`count` different searches and half as many that are there again, in some order."""
    bodies = searches(count, seed=11)
    bodies += bodies[: count // 2]
    random.Random(11).shuffle(bodies)
    return bodies, [ask("POST", "/search", body, key=place.key) for body in bodies]


def bodies_of(url: str, asks: Sequence[Ask], count: int) -> list[bytes]:
    """The bare answers in the order of the requests, asked by some clients at the same time."""
    with elsewhere(clients, url, asks, count, keep=True) as traffic:
        answers = in_order(traffic.result())
    assert len(answers) == len(asks)
    return answers


def in_order(answers: Sequence[Answer]) -> list[bytes]:
    assert {answer.status for answer in answers} == {200}
    assert [answer.number for answer in sorted(answers)] == list(range(len(answers)))
    return [bare(answer.body) for answer in sorted(answers)]


def batches(place: Place, bodies: Sequence[dict[str, object]]) -> list[Ask]:
    parts = [bodies[start : start + BATCH] for start in range(0, len(bodies), BATCH)]
    return [ask("POST", "/search/batch", {"searches": part}, key=place.key) for part in parts]


def joined(answers: Sequence[bytes]) -> list[bytes]:
    """What batches must answer that hold these searches."""
    parts = [answers[start : start + BATCH] for start in range(0, len(answers), BATCH)]
    return [b'{"results":[' + b",".join(part) + b"]}" for part in parts]


def test_the_same_answers_one_by_one_and_all_at_once(full: bool, figure: Figure, place: Place) -> None:
    bodies, asks = requests(place, 2000 if full else 100)
    with place.served(deadline_ms=60_000, max_waiting=CLIENTS * BATCH) as (_, url):
        serial = bodies_of(url, asks, 1)
        assert len(set(serial)) > len(serial) / 2
        rounds = 10 if full else 1
        together = [bodies_of(url, asks, CLIENTS) for _ in range(rounds)]
        batched = [bodies_of(url, batches(place, bodies), count) for count in (1, CLIENTS)]
    assert all(one == serial for one in together)
    assert all(one == joined(serial) for one in batched)
    different = sum(a != b for one in together for a, b in zip(one, serial, strict=True))
    figure("concurrent_differences", different, "answers", compared=rounds * len(asks), in_batches=2 * len(asks))


def test_the_same_answers_from_two_workers(full: bool, place: Place) -> None:
    _, asks = requests(place, 500 if full else 40)
    with place.served(deadline_ms=60_000) as (_, url):
        alone = bodies_of(url, asks, 1)
    with place.served(workers=2, deadline_ms=60_000, warm_up_queries=50) as (server, url):
        both = False
        while not both:  # the kernel decides which of them takes a connection
            with elsewhere(clients, url, asks, CLIENTS, keep=True) as traffic:
                while not traffic.done():
                    both = both or all(connections(pid, url) for pid in children(server))
            assert in_order(traffic.result()) == alone
