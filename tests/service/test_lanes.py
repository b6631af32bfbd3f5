"""Lanes: places for calls, calls that are given up, and calls that never return."""

import threading
from time import perf_counter
from typing import Any

import pytest
from lightretriever.service.execution.lanes import Call, Lane, LateError, StuckError


def soon() -> float:
    return perf_counter() + 30


def never(call: Call[Any]) -> None:
    raise AssertionError("nobody waits for a place")


def make(lane: Lane, call: Call[Any]) -> None:
    """What a thread does with a call."""
    assert lane.enter(call, never)
    call.run()
    lane.leave(call)


def test_a_call_gives_its_value_and_its_time() -> None:
    lane = Lane("lane", 2, patience=30)
    call = lane.call(soon(), lambda a, b: a + b, 2, 3)
    before = perf_counter()
    make(lane, call)
    value, started, ended = call.result()
    assert value == 5
    assert before <= started <= ended <= perf_counter()


def test_a_call_raises_what_it_raised() -> None:
    lane = Lane("lane", 1, patience=30)

    def fail(error: BaseException) -> None:
        raise error

    for error in (ValueError("bad"), TimeoutError("its own"), KeyboardInterrupt()):
        call = lane.call(soon(), fail, error)
        make(lane, call)
        with pytest.raises(type(error)):
            call.result()
    assert lane.abandoned == 0


def test_a_place_for_each_call_and_then_for_the_one_that_waited_longest() -> None:
    lane = Lane("lane", 2, patience=30)
    first, second, third, fourth, fifth = (lane.call(soon(), int) for _ in range(5))
    turns: list[Call[int]] = []
    entered = [lane.enter(call, turns.append) for call in (first, second, third, fourth, fifth)]
    assert entered == [True, True, False, False, False]
    assert lane.give_up(third)
    for ends, follows in ((first, fourth), (second, fifth)):
        wanted, follower = lane.leave(ends)
        assert wanted
        assert follower is not None
        follower()
        assert turns.pop() is follows
        assert lane.enter(follows, never)
    assert not lane.enter(third, never)  # given up, and not waiting for a place any more
    assert lane.leave(fourth) == (True, None)


def test_a_call_that_runs_is_counted_from_when_it_is_given_up_until_it_ends() -> None:
    lane = Lane("lane", 1, patience=30)
    call = lane.call(soon(), int)
    assert lane.enter(call, never)
    assert lane.give_up(call)
    assert not lane.give_up(call)
    assert lane.abandoned == 1
    with pytest.raises(LateError, match="'lane' was not finished in time"):
        call.result()
    call.run()
    assert lane.leave(call) == (False, None)
    assert lane.abandoned == 0
    with pytest.raises(LateError):
        call.result()


def test_a_call_that_ended_or_never_began_is_not_counted() -> None:
    lane = Lane("lane", 1, patience=30)
    done, unbegun = lane.call(soon(), int, "7"), lane.call(soon(), int)
    make(lane, done)
    assert not lane.give_up(done)
    assert done.result()[0] == 7
    assert lane.give_up(unbegun)
    assert lane.abandoned == 0
    assert not lane.enter(unbegun, never)


def test_only_a_call_past_the_lanes_patience_is_stuck_however_impatient_its_caller() -> None:
    patient, impatient = Lane("patient", 1, patience=30), Lane("impatient", 1, patience=0.0)
    calls = [lane.call(soon(), int) for lane in (patient, impatient)]
    for call in calls:
        assert call.lane.enter(call, never)
        assert call.lane.give_up(call)
    assert impatient.stuck
    with pytest.raises(StuckError, match="all 1 places of 'impatient' are held"):
        impatient.call(soon(), int)
    # Merely slow: new calls queue, and get their turn.
    assert not patient.stuck
    queued = patient.call(soon(), int, "7")
    turns: list[Call[int]] = []
    assert not patient.enter(queued, turns.append)
    for call in calls:
        call.lane.leave(call)
        assert not call.lane.stuck
    make(patient, queued)
    assert queued.result()[0] == 7
    impatient.call(soon(), int)


def test_a_call_knows_its_thread() -> None:
    lane = Lane("lane", 1, patience=30)
    call = lane.call(soon(), int)
    assert call.thread is None
    thread = threading.Thread(target=make, args=(lane, call))
    thread.start()
    thread.join()
    assert call.thread is thread
