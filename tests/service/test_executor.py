"""The executor: a call that never begins. test_faults.py and tests/faults/test_legs.py have legs that fail and hang."""

import threading
from collections.abc import Iterator
from contextlib import closing
from time import perf_counter

import pytest

from lightretriever.service.execution.executor import Executor


@pytest.fixture
def executor() -> Iterator[Executor]:
    with closing(Executor(["one", "two"], 1, patience_s=60)) as executor:
        yield executor


def soon() -> float:
    return perf_counter() + 0.1


def later() -> float:
    return perf_counter() + 60


def test_a_call_that_never_began_is_cancelled(executor: Executor, gate: threading.Event) -> None:
    begun: list[int] = []
    assert executor.gather({"one": gate.wait}, soon())["one"].reason == "late"
    assert executor.gather({"one": lambda: begun.append(1)}, soon())["one"].reason == "late"
    gate.set()
    assert executor.gather({"one": lambda: 7}, later())["one"].get() == 7
    assert begun == []
