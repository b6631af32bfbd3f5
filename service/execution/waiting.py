"""What comes of jobs, on its way to who waits for it."""

from collections.abc import Callable
from threading import Lock
from typing import Any

__all__ = ["Done", "Gathering", "Waiter"]

Done = Callable[[Any, BaseException | None], None]
"""Gets the value of a job, or its error."""


class Waiter:
    """Lets a thread wait for a job."""

    def __init__(self) -> None:
        self._ended = Lock()
        self._ended.acquire()
        self._value: Any = None
        self._error: BaseException | None = None

    def done(self, value: Any, error: BaseException | None) -> None:
        """Take what came of the job."""
        self._value, self._error = value, error
        self._ended.release()

    def wait(self) -> Any:
        """Give the job's value, or raise its error. To be asked once."""
        self._ended.acquire()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # an error holds the frames it went through, and so itself
        return self._value


class Gathering:
    """Makes one outcome of those of `count` jobs: all values in order, or the first error in that order."""

    def __init__(self, count: int, done: Done, drop: Callable[[int], object]) -> None:
        """`drop` is told from which job on no outcome is needed any more."""
        self._values: list[Any] = [None] * count
        self._failed = count
        self._error: BaseException | None = None
        self._left = count
        self._lock = Lock()
        self._done = done
        self._drop = drop
        if not count:
            done([], None)

    def done_of(self, number: int) -> Done:
        """Give what takes the outcome of a job."""

        def done(value: Any, error: BaseException | None) -> None:
            with self._lock:
                self._values[number] = value
                first = error is not None and number < self._failed
                if first:
                    self._failed, self._error = number, error
                self._left -= 1
                left = self._left
            if first:
                self._drop(number + 1)
            if not left:
                error, self._error = self._error, None
                self._done(self._values if error is None else None, error)

        return done
