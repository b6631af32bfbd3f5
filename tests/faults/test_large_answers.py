"""Large answers for a long time: the process stays within what docs/sizing.md says."""

import pytest

from lightretriever.artifacts.sparse.jvm import SEARCH_HEAP_MB
from tests.faults.conftest import Figure
from tests.faults.mix import searches
from tests.faults.traffic import ask, clients, elsewhere
from tests.service.place import Place
from tests.support.memory import held

pytestmark = pytest.mark.slow

CLIENTS = 4
BESIDE_MB = 96  # Python's memory of the answers under way, and what Java has beside its heap


def test_large_answers_fill_no_more_than_javas_heap(full: bool, figure: Figure, place: Place) -> None:
    count = 20_000 if full else 400
    large = {"k": 1000, "candidates": 1000, "offset": 0}
    bodies = [one | large for one in searches(200)]
    asks = [ask("POST", "/search", bodies[number % len(bodies)], key=place.key) for number in range(count)]
    with place.served(deadline_ms=60_000) as (server, url):
        before = held(server.process.pid).resident_mb
        with elsewhere(clients, url, asks, CLIENTS) as traffic:
            answers = traffic.result()
        after = held(server.process.pid).resident_mb
    assert {answer.status for answer in answers} == {200}
    assert len(answers) == count
    assert after - before <= SEARCH_HEAP_MB + BESIDE_MB
    figure("large_answers", count, "answers")
    figure("large_answers_mb", round(after - before), "MB", before=round(before), after=round(after))
