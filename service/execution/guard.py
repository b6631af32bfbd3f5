"""A thread that looks after calls, so that the threads that make them need not."""

import logging
from math import inf
from threading import Condition, Thread
from time import perf_counter
from typing import Final, Protocol

__all__ = ["Guard", "Watched"]

_log = logging.getLogger(__name__)
_JOIN_S: Final = 5.0
_AGAIN_S: Final = 0.1


class Watched(Protocol):
    """What a guard looks after."""

    look_at: float

    def look(self, now: float) -> None:
        """Look whether something is to be done, at a `perf_counter` time, and say in `look_at` when to look again."""


class Guard:
    """Looks at what it watches when its time comes. Most of it is forgotten before, so the guard, which sleeps until
    the first time that was named when it fell asleep, wakes a few times a second, however many requests there are."""

    def __init__(self, name: str) -> None:
        self._watched: dict[Watched, None] = {}
        self._awake = Condition()
        self._wakes_at = -inf
        self._named = inf  # the time that the guard was woken for
        self._closed = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def watch(self, one: Watched) -> None:
        """Begin to look after something."""
        self._watched[one] = None
        if one.look_at < self._wakes_at:
            with self._awake:
                self._named = min(self._named, one.look_at)
                self._awake.notify()

    def forget(self, one: Watched) -> None:
        """Look after it no longer."""
        self._watched.pop(one, None)

    def close(self) -> None:
        """End the thread."""
        with self._awake:
            self._closed = True
            self._awake.notify()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while self._sleep():
            self._look_round(perf_counter())

    def _look_round(self, now: float) -> None:
        """In a call of its own, so that nothing that was looked at is kept while the guard sleeps."""
        for one in list(self._watched):
            if one.look_at <= now:
                self._look(one, now)

    def _look(self, one: Watched, now: float) -> None:
        try:
            one.look(now)
        except Exception:  # such as a thread that can't be started; the others must be looked at all the same
            _log.exception("looking after calls failed")
            one.look_at = now + _AGAIN_S

    def _sleep(self) -> bool:
        """Sleep until the first time comes, or an earlier one is named. False if the guard is closed."""
        with self._awake:
            # From here on whoever begins to be watched wakes the guard, until it has looked at the times itself.
            self._wakes_at = inf
            # What it was woken for may be forgotten already. It sleeps until then all the same; with no end to its
            # sleep, every short request would wake it.
            self._wakes_at = min((one.look_at for one in list(self._watched)), default=self._named)
            self._named = inf
            seconds = None if self._wakes_at == inf else self._wakes_at - perf_counter()
            if not self._closed and (seconds is None or seconds > 0):
                self._awake.wait(seconds)
            self._wakes_at = -inf
            return not self._closed
