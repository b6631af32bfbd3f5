"""Lanes: bounded threads, calls that are given up, and threads that never return."""

import threading
from time import perf_counter

import pytest

from service.lanes import Lane, LateError, StuckError


def soon() -> float:
    return perf_counter() + 30


def test_a_call_gives_its_value_and_its_time() -> None:
    lane = Lane("lane", 2, patience=30)
    before = perf_counter()
    value, started, ended = lane.call(lambda a, b: a + b, 2, 3).result(soon())
    assert value == 5
    assert before <= started <= ended <= perf_counter()
    assert lane.close()


def test_a_call_raises_what_it_raised() -> None:
    lane = Lane("lane", 1, patience=30)

    def fail(error: BaseException) -> None:
        raise error

    for error in (ValueError("bad"), TimeoutError("its own"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            lane.call(fail, error).result(soon())
    assert lane.call(int, "7").result(soon())[0] == 7
    assert lane.abandoned == 0
    lane.close()


def test_threads_are_started_when_needed_and_bounded() -> None:
    lane = Lane("bounded", 3, patience=30)
    gate, running = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        running.release()
        gate.wait()

    lane.call(int).result(soon())
    calls = [lane.call(wait) for _ in range(10)]
    for _ in range(3):
        assert running.acquire(timeout=30)
    assert not running.acquire(blocking=False)
    assert sum(thread.name.startswith("bounded-") for thread in threading.enumerate()) == 3
    gate.set()
    for call in calls:
        call.result(soon())
    assert lane.close()
    assert not any(thread.name.startswith("bounded-") for thread in threading.enumerate())


def test_late_calls_are_counted_until_they_end_and_waiting_ones_never_begin() -> None:
    lane = Lane("lane", 1, patience=30)
    gate, started = threading.Event(), threading.Event()
    ran: list[int] = []

    def wait() -> None:
        started.set()
        gate.wait()

    stuck, waiting = lane.call(wait), lane.call(ran.append, 1)
    assert started.wait(30)
    for call in (waiting, stuck):
        with pytest.raises(LateError):
            call.result(perf_counter() - 1)
    assert lane.abandoned == 1
    gate.set()
    assert lane.close()
    assert lane.abandoned == 0
    assert ran == []


def test_only_a_call_past_the_lanes_patience_is_stuck_however_impatient_its_caller() -> None:
    patient, impatient = Lane("patient", 1, patience=30), Lane("impatient", 1, patience=0.0)
    gate, started = threading.Event(), threading.Semaphore(0)

    def wait() -> str:
        started.release()
        gate.wait()
        return "done"

    for lane in (patient, impatient):
        call = lane.call(wait)
        assert started.acquire(timeout=30)
        with pytest.raises(LateError):
            call.result(perf_counter() - 1)
    assert impatient.stuck
    with pytest.raises(StuckError, match="all 1 threads of 'impatient' are held"):
        impatient.call(int)
    # Merely slow: new calls queue, and get their turn.
    assert not patient.stuck
    queued = patient.call(int, "7")
    gate.set()
    assert queued.result(soon())[0] == 7
    for lane in (patient, impatient):
        assert lane.close()
        assert not lane.stuck
        assert lane.abandoned == 0


def test_a_call_is_abandoned_once_and_not_after_its_end() -> None:
    lane = Lane("lane", 1, patience=30)
    gate, started = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        gate.wait()

    done = lane.call(int)
    done.result(soon())
    done.abandon()
    assert lane.abandoned == 0
    held = lane.call(wait)
    assert started.wait(30)
    held.abandon()
    held.abandon()
    assert lane.abandoned == 1
    gate.set()
    assert lane.close()
    assert lane.abandoned == 0


def test_closing_finishes_what_waits_and_reports_what_is_stuck() -> None:
    lane = Lane("lane", 1, patience=30)
    calls = [lane.call(int, str(number)) for number in range(20)]
    assert lane.close()
    assert [call.result(soon())[0] for call in calls] == list(range(20))
    with pytest.raises(RuntimeError, match="closed"):
        lane.call(int)
    stuck, gate = Lane("stuck", 1, patience=30), threading.Event()
    stuck.call(gate.wait)
    assert not stuck.close(timeout=0.01)
    gate.set()
    assert stuck.close()
