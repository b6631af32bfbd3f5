"""A request as a job: one thread works on it from its beginning to its end, and others help where they are idle.

A job is a generator. It yields calls into Faiss and Lucene that it needs next, and goes on when all of them have ended
or were given up. The thread that works on it makes these calls one after the other; idle threads take some of them off
it, so that the legs of a lonely request run at the same time. Whoever ends the last call goes on with the job. No
thread ever waits for another one, and under load, when none is idle, none wakes another.

What hangs in a call can't go on, so a guard looks after the calls of all jobs: those that have not begun at half of
their time get a thread of their own, those whose time is over are given up, and the job goes on in another thread.
"""

from collections import deque
from collections.abc import Generator, Sequence
from math import inf
from threading import Lock
from time import perf_counter
from typing import Any, Final, Generic, TypeVar

from lightretriever.service.execution.crew import Crew
from lightretriever.service.execution.guard import Guard
from lightretriever.service.execution.lanes import Call
from lightretriever.service.execution.waiting import Done, Gathering, Waiter

__all__ = ["Job", "Jobs", "Steps", "Wave"]

T = TypeVar("T")
U = TypeVar("U")

Steps = Generator[Sequence[Call[Any]], None, T]
"""A job's work: yields the calls it needs, and returns what came of it."""

_HALF: Final = 0.5


class Jobs:
    """The threads that work on jobs, and their guard."""

    def __init__(self, name: str, threads: int) -> None:
        self.crew = Crew(name, threads)
        self.guard = Guard(f"{name}-guard")

    def begin(self, steps: Steps[Any], done: Done) -> "Job[Any]":
        """Begin a job when its turn comes; `done` is called in some thread. RuntimeError if closed."""
        job = Job(self, steps, done)
        self.crew.put(job.go_on)
        return job

    def begin_all(self, works: Sequence[Steps[Any]], done: Done) -> list["Job[Any]"]:
        """Begin several jobs that end as one: with a list of their values, or with the first one's error in their
        order. When one fails, those after it take no further step. RuntimeError if closed."""
        jobs: list[Job[Any]] = []

        def drop(first: int) -> None:
            for job in jobs[first:]:
                job.cancel()

        gathering = Gathering(len(works), done, drop)
        jobs.extend(Job(self, steps, gathering.done_of(number)) for number, steps in enumerate(works))
        for job in jobs:
            self.crew.put(job.go_on)
        return jobs

    def do(self, steps: Steps[T]) -> T:
        """Do a job and wait for it. The first calls it needs, if it needs any, and all after them, are made by the
        threads: what hangs does not keep the caller."""
        waiter = Waiter()
        job = Job(self, steps, waiter.done)
        wave = job.step()
        if wave is not None:
            wave.watch()
            for _ in wave.calls:
                self.crew.put(wave.work)
        value: T = waiter.wait()
        return value

    def do_all(self, works: Sequence[Steps[T]]) -> list[T]:
        """Do several jobs as one, see `begin_all`, and wait for them."""
        waiter = Waiter()
        self.begin_all(works, waiter.done)
        values: list[T] = waiter.wait()
        return values

    def close(self) -> bool:
        """Finish what was begun and end the threads. False if one is still busy after some seconds."""
        ended = self.crew.close()
        self.guard.close()
        return ended


class Job(Generic[T]):
    """A request under way."""

    __slots__ = ("_cancelled", "_done", "_jobs", "_steps")

    def __init__(self, jobs: Jobs, steps: Steps[T], done: Done) -> None:
        self._jobs = jobs
        self._steps = steps
        self._done = done
        self._cancelled = False

    def cancel(self) -> None:
        """Take no further step: nobody waits for the answer."""
        self._cancelled = True

    def go_on(self) -> None:
        """Take steps until the job has ended, or others make the last of the calls it needs."""
        while (wave := self.step()) is not None:
            wave.watch()
            wave.lend()
            if not wave.make_calls():
                return

    def step(self) -> "Wave | None":
        """Take the next step; give the calls that are needed for the one after it, None if there is none."""
        try:
            if self._cancelled:
                self._steps.close()
                self._done(None, None)
                return None
            while not (calls := next(self._steps)):
                pass
        except StopIteration as stop:
            self._done(stop.value, None)
            return None
        except BaseException as error:
            self._done(None, error)
            return None
        return Wave(self._jobs, self, calls)


class Wave:
    """Calls that a job waits for together, before it goes on."""

    __slots__ = ("_first_until", "_guard", "_left", "_lock", "_untaken", "calls", "crew", "job", "look_at")

    def __init__(self, jobs: Jobs, job: Job[Any], calls: Sequence[Call[Any]]) -> None:
        self.crew = jobs.crew
        self.job = job
        self.calls = calls
        self._guard = jobs.guard
        self._lock = Lock()
        self._left = len(calls)
        self._untaken = deque(calls)
        self._first_until = min(call.until for call in calls)
        self.look_at = self._first_until
        """The `perf_counter` time when the guard is to look at these calls."""
        if len(calls) > 1:
            now = perf_counter()
            self.look_at = now + _HALF * (self._first_until - now)

    def watch(self) -> None:
        """Let the guard look after the calls."""
        self._guard.watch(self)

    def lend(self) -> None:
        """Let idle threads, if there are any, take all calls but one, and but those that are not worth waking one."""
        for _ in range(sum(not call.brief for call in self.calls) - 1):
            if not self.crew.lend(self.work):
                return

    def work(self) -> None:
        """Make calls that nobody has taken yet, and go on with the job if the last one ended here."""
        if self.make_calls():
            self.job.go_on()

    def make_calls(self) -> bool:
        """Make calls that nobody has taken yet. True if the last of all ended here: the caller goes on with the job."""
        while True:
            try:
                call = self._untaken.popleft()
            except IndexError:
                return False
            if self._make(call):
                return True

    def look(self, now: float) -> None:
        """Give up the calls whose time is over, and see that none waits for a thread that hangs in another one."""
        if self._untaken and now < self._first_until:
            self.crew.hire(self.work)
        for call in self.calls:
            if now >= call.until and call.lane.give_up(call):
                if call.thread is not None:
                    self.crew.replace(call.thread)
                if self._one_less():
                    self.crew.hire(self.job.go_on)
                    return
        self.look_at = min((call.until for call in self.calls if call.state in ("waiting", "running")), default=inf)

    def _make(self, call: Call[Any]) -> bool:
        """Make a call. True if it was the last."""
        if not call.lane.enter(call, self._make_later):
            return False
        call.run()
        wanted, follower = call.lane.leave(call)
        if follower is not None:
            self.crew.hire(follower)
        return wanted and self._one_less()

    def _make_later(self, call: Call[Any]) -> None:
        """Make a call that had to wait for a place in its lane, and go on with the job if it was the last."""
        if self._make(call):
            self.job.go_on()

    def _one_less(self) -> bool:
        with self._lock:
            self._left -= 1
            if self._left:
                return False
        self._guard.forget(self)
        return True
