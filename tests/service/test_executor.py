"""The executor: calls at the same time, one deadline, and what happens to calls that hang."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from time import perf_counter, sleep
from typing import TypeVar

import pytest
from lightretriever.service.execution.executor import Executor, Outcome

T = TypeVar("T")


@pytest.fixture
def executor() -> Iterator[Executor]:
    with closing(Executor(["one", "two"], 2, patience_s=0.2)) as executor:
        yield executor


def soon() -> float:
    return perf_counter() + 0.1


def later() -> float:
    return perf_counter() + 60


def call(executor: Executor, lane: str, function: Callable[[], T], until: float) -> Outcome[T]:
    return executor.gather({lane: function}, until)[lane]


def test_calls_run_at_the_same_time(executor: Executor) -> None:
    both = threading.Barrier(2)
    outcomes = executor.gather({"one": lambda: both.wait(30), "two": lambda: both.wait(30)}, later())
    assert sorted(outcome.get() for outcome in outcomes.values()) == [0, 1]
    assert all(0 < outcome.started <= outcome.ended for outcome in outcomes.values())


def test_an_error_is_an_outcome(executor: Executor) -> None:
    outcomes = executor.gather({"one": lambda: 1 // 0, "two": lambda: 7}, later())
    assert outcomes["one"].reason == "failed"
    assert isinstance(outcomes["one"].error, ZeroDivisionError)
    assert outcomes["two"].get() == 7


def test_a_late_call_is_given_up_and_counted_until_it_ends(executor: Executor, gate: threading.Event) -> None:
    outcomes = executor.gather({"one": gate.wait, "two": lambda: 7}, soon())
    assert (outcomes["one"].reason, outcomes["two"].get()) == ("late", 7)
    assert executor.abandoned == executor.lanes["one"].abandoned == 1
    gate.set()
    while executor.abandoned:
        sleep(0.001)


def test_a_lane_whose_threads_all_hang_refuses_calls_and_the_others_work(
    executor: Executor, gate: threading.Event
) -> None:
    for _ in range(2):
        assert call(executor, "one", gate.wait, soon()).reason == "late"
    while not executor.lanes["one"].stuck:
        sleep(0.01)
    assert executor.stuck == ["one"]
    assert call(executor, "one", lambda: 7, later()).reason == "stuck"
    assert call(executor, "two", lambda: 7, later()).get() == 7
    gate.set()
    while executor.lanes["one"].stuck:
        sleep(0.001)
    assert call(executor, "one", lambda: 7, later()).get() == 7


def test_a_call_that_never_began_is_cancelled(executor: Executor, gate: threading.Event) -> None:
    begun: list[int] = []
    for _ in range(2):
        call(executor, "one", gate.wait, soon())
    with closing(Executor(["one"], 1, patience_s=60)) as single:
        assert call(single, "one", gate.wait, soon()).reason == "late"
        assert call(single, "one", lambda: begun.append(1), soon()).reason == "late"
        gate.set()
        assert call(single, "one", lambda: 7, later()).get() == 7
    assert begun == []
