"""Jobs: who makes their calls, what happens when one hangs, and how they end."""

import gc
import threading
import weakref
from collections.abc import Iterator
from time import perf_counter, sleep
from typing import Any

import pytest
from lightretriever.service.execution.jobs import Jobs, Steps
from lightretriever.service.execution.lanes import Call, Lane, LateError


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    jobs = Jobs("job", 2)
    yield jobs
    jobs.close()


@pytest.fixture
def lane() -> Lane:
    return Lane("lane", 2, patience=30)


def after(seconds: float) -> float:
    return perf_counter() + seconds


def values(*calls: Call[Any]) -> Steps[list[Any]]:
    """Wait for calls; "late" stands for one that was given up."""
    yield calls
    found: list[Any] = []
    for call in calls:
        try:
            found.append(call.result()[0])
        except LateError:
            found.append("late")
    return found


def test_a_job_gets_what_its_calls_gave(jobs: Jobs, lane: Lane) -> None:
    def work() -> Steps[int]:
        one = yield from values(lane.call(after(30), int, "1"), lane.call(after(30), int, "2"))
        yield ()
        two = yield from values(lane.call(after(30), sum, one))
        return int(two[0])

    assert jobs.do(work()) == 3


def test_a_job_without_calls_is_done_where_it_is_asked_for(jobs: Jobs) -> None:
    def work() -> Steps[str]:
        yield from ()
        return threading.current_thread().name

    assert jobs.do(work()) == threading.current_thread().name


def test_errors_of_a_job_are_raised(jobs: Jobs, lane: Lane) -> None:
    def at_once() -> Steps[None]:
        yield from ()
        raise ArithmeticError("at once")

    def later() -> Steps[None]:
        call = lane.call(after(30), divmod, 1, 0)
        yield [call]
        call.result()

    with pytest.raises(ArithmeticError, match="at once"):
        jobs.do(at_once())
    with pytest.raises(ZeroDivisionError):
        jobs.do(later())


def test_idle_threads_take_calls_so_that_they_run_at_the_same_time(jobs: Jobs, lane: Lane) -> None:
    both = threading.Barrier(2)
    assert sorted(jobs.do(values(*(lane.call(after(30), both.wait, 30) for _ in range(2))))) == [0, 1]


def test_one_thread_makes_all_calls_when_none_is_idle(lane: Lane) -> None:
    jobs = Jobs("lonely", 1)
    names = jobs.do(values(*(lane.call(after(30), lambda: threading.current_thread().name) for _ in range(5))))
    assert names == ["lonely-0"] * 5
    jobs.close()


def test_a_call_that_hangs_is_given_up_and_the_job_goes_on(jobs: Jobs, lane: Lane, gate: threading.Event) -> None:
    begun = perf_counter()
    assert jobs.do(values(lane.call(after(2), gate.wait), lane.call(after(30), int, "7"))) == ["late", 7]
    assert perf_counter() - begun >= 2
    assert lane.abandoned == 1
    gate.set()
    while lane.abandoned:
        sleep(0.001)


def test_a_call_behind_one_that_hangs_gets_a_thread_in_time(gate: threading.Event) -> None:
    jobs, hanging, other = Jobs("lonely", 1), Lane("hanging", 1, patience=30), Lane("other", 1, patience=30)
    assert jobs.do(values(hanging.call(after(3), gate.wait), other.call(after(3), int, "7"))) == ["late", 7]
    # The thread that is held was replaced.
    assert jobs.do(values(other.call(after(30), int, "8"))) == [8]
    gate.set()
    assert jobs.close()


def test_a_call_waits_for_a_place_in_its_lane(jobs: Jobs, gate: threading.Event) -> None:
    lane = Lane("narrow", 1, patience=30)
    assert jobs.do(values(lane.call(after(1), gate.wait))) == ["late"]
    assert jobs.do(values(lane.call(after(0.05), int, "1"))) == ["late"]  # the place is not free
    threading.Timer(0.1, gate.set).start()
    assert jobs.do(values(lane.call(after(30), int, "2"))) == [2]


def test_every_call_of_many_jobs_is_made_once(lane: Lane) -> None:
    jobs = Jobs("many", 4)
    made: list[int] = []

    def work(number: int) -> Steps[int]:
        for _ in range(3):
            yield from values(*(lane.call(after(30), made.append, number) for _ in range(3)))
        return number

    assert jobs.do_all([work(number) for number in range(200)]) == list(range(200))
    assert sorted(made) == [number for number in range(200) for _ in range(9)]
    jobs.close()


def test_the_first_error_of_several_jobs_is_that_of_all_and_later_ones_stop(gate: threading.Event, lane: Lane) -> None:
    jobs = Jobs("several", 1)
    begun: list[int] = []

    def work(number: int) -> Steps[int]:
        begun.append(number)
        yield from values(lane.call(after(30), int))
        if number in (1, 2):
            raise ArithmeticError(number)
        return number

    with pytest.raises(ArithmeticError, match="1"):
        jobs.do_all([work(number) for number in range(5)])
    assert begun == [0, 1]
    assert jobs.do_all([]) == []
    jobs.close()


def test_a_cancelled_job_takes_no_further_step(lane: Lane, gate: threading.Event) -> None:
    jobs = Jobs("cancelled", 1)
    steps: list[str] = []
    ended = threading.Event()

    def work() -> Steps[None]:
        try:
            steps.append("first")
            yield from values(lane.call(after(30), gate.wait))
            steps.append("second")
        finally:
            steps.append("closed")

    job = jobs.begin(work(), lambda *_: ended.set())
    while not steps:
        sleep(0.001)
    job.cancel()
    gate.set()
    assert ended.wait(30)
    assert steps == ["first", "closed"]
    jobs.close()


def test_closed_jobs_are_refused_and_begun_ones_finished(lane: Lane) -> None:
    jobs = Jobs("closing", 1)
    found: list[Any] = []
    for number in range(10):
        jobs.begin(values(lane.call(after(30), int, str(number))), lambda value, _: found.extend(value))
    assert jobs.close()
    assert found == list(range(10))
    with pytest.raises(RuntimeError, match="closed"):
        jobs.begin(values(), print)
    assert not any(thread.name.startswith("closing-") for thread in threading.enumerate())


class Thing:
    def fail(self) -> None:
        raise ArithmeticError


def test_nothing_of_a_job_outlives_it(jobs: Jobs, lane: Lane) -> None:
    thing = Thing()
    gone = weakref.ref(thing)

    def work(thing: Thing) -> Steps[None]:
        call = lane.call(after(30), thing.fail)
        yield [call]
        call.result()

    gc.disable()
    try:
        with pytest.raises(ArithmeticError) as caught:
            jobs.do(work(thing))
        del caught, thing
        for _ in range(2):
            jobs.do(values(lane.call(after(30), int), lane.call(after(30), int)))  # the threads have let go before
        until = after(10)
        while gone() is not None and perf_counter() < until:
            sleep(0.001)
        assert gone() is None
    finally:
        gc.enable()
