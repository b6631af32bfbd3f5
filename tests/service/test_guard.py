"""The guard: looks when the time has come, not at what was forgotten, and at the rest when one look fails."""

import threading
from math import inf
from time import perf_counter, sleep

import pytest
from lightretriever.service.execution.guard import Guard


class Watched:
    def __init__(self, seconds: float, error: Exception | None = None) -> None:
        self.look_at = perf_counter() + seconds
        self.looked = threading.Semaphore(0)
        self._error = error

    def look(self, now: float) -> None:
        assert now >= self.look_at
        self.looked.release()
        if self._error is not None:
            raise self._error
        self.look_at = now + 30


def test_it_looks_when_the_time_has_come_and_once() -> None:
    guard, late, early = Guard("guard"), Watched(30), Watched(0.05)
    guard.watch(late)
    guard.watch(early)  # wakes the guard, which slept for longer
    assert early.looked.acquire(timeout=20)
    assert not early.looked.acquire(timeout=0.05)
    assert not late.looked.acquire(blocking=False)
    guard.close()


def test_what_is_forgotten_is_not_looked_at() -> None:
    guard, gone, there = Guard("guard"), Watched(1), Watched(2)
    guard.watch(gone)
    guard.watch(there)
    guard.forget(gone)
    guard.forget(gone)
    assert there.looked.acquire(timeout=20)
    assert not gone.looked.acquire(blocking=False)
    guard.close()


def test_requests_that_end_before_it_looks_do_not_wake_it_each(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Guard("guard")
    sleeps: list[float | None] = []
    asleep = threading.Semaphore(0)
    wait = guard._awake.wait

    def counted(seconds: float | None = None) -> bool:
        sleeps.append(seconds)
        asleep.release()
        return wait(seconds)

    while guard._wakes_at != inf:
        sleep(0.001)
    with guard._awake:  # it sleeps now
        monkeypatch.setattr(guard._awake, "wait", counted)
    first = Watched(20)
    guard.watch(first)
    guard.forget(first)  # before the guard has looked at the times, as a short request does, or soon after
    assert asleep.acquire(timeout=20)
    for _ in range(50):
        short = Watched(30)
        guard.watch(short)
        guard.forget(short)
    assert not asleep.acquire(timeout=0.2)
    assert len(sleeps) == 1
    assert sleeps[0] is not None
    guard.close()


def test_one_that_fails_is_logged_and_tried_again_and_does_not_keep_it_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    guard, failing, other = Guard("guard"), Watched(0.0, OSError("no thread")), Watched(0.1)
    guard.watch(failing)
    guard.watch(other)
    for one in (failing, other, failing):
        assert one.looked.acquire(timeout=20)
    assert "no thread" in caplog.text
    guard.close()


def test_a_closed_guard_has_no_thread() -> None:
    guard = Guard("closing-guard")
    guard.close()
    assert not any(thread.name == "closing-guard" for thread in threading.enumerate())
