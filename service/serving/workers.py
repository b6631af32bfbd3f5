"""Several worker processes behind one listening socket: started afresh, restarted when one dies, stopped together.

Nothing is forked, because a Java virtual machine doesn't survive that. The parent opens no bundle and starts no JVM. It
starts the workers, and hears from each through a pipe when it is ready or why it can't be. In a folder that they share
are their metrics, which are put together, and how many connections each has, so that all get the same.
"""

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from socket import socket
from threading import Event, Thread
from time import monotonic
from types import FrameType
from typing import Final

from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.observability.metrics import METRICS_FOLDER
from lightretriever.service.observability.multiprocess import inherit
from lightretriever.service.search.reload import Serving
from lightretriever.service.serving.acceptor import Share
from lightretriever.service.serving.server import EXIT_ERROR, announce, ready_line, serve
from lightretriever.service.settings import Settings

__all__ = ["Job", "run_workers"]

_log = logging.getLogger(__name__)
_spawn: Final = multiprocessing.get_context("spawn")
_TICK_S: Final = 1.0
_KILL_AFTER_S: Final = 10.0
_LONG_LIFE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 30.0
_RELOAD: Final = "reload"
_CONNECTIONS: Final = "connections"


@dataclass(frozen=True)
class Job:
    """What every worker does: serve the bundle in a folder. `address` is for people."""

    bundle: Path
    settings: Settings
    listener: socket
    address: str


@dataclass(frozen=True)
class _Ready:
    line: str


@dataclass(frozen=True)
class _Failed:
    reason: str


class _Worker:
    """A worker process as its parent sees it."""

    def __init__(self, job: Job, shared: Path, place: int, crashes: int = 0) -> None:
        self.place = place
        self.line: str | None = None
        """What it said when it was ready."""
        self.reason: str | None = None
        """Why it can't serve."""
        self.crashes = crashes
        self.began = monotonic()
        self.pipe, other = _spawn.Pipe()
        self.process: SpawnProcess = _spawn.Process(target=_work, args=(job, shared, place, other))
        with _metrics_in(shared):
            self.process.start()
        other.close()

    def hear(self) -> None:
        """Take in what it said."""
        try:
            while self.pipe.poll():
                said = self.pipe.recv()
                if isinstance(said, _Ready):
                    self.line = said.line
                else:
                    self.reason = said.reason
        except (EOFError, OSError):  # it has ended
            return

    def due(self) -> float:
        """When it is to be replaced, now that it has ended: a `monotonic` time. Who dies young again waits longer."""
        if monotonic() - self.began > _LONG_LIFE_S:
            self.crashes = 0
        self.crashes += 1
        return monotonic() + (0.0 if self.crashes == 1 else min(2.0 ** (self.crashes - 1), _LONGEST_PAUSE_S))


class _Supervisor:
    """Keeps `count` workers going until SIGTERM or SIGINT."""

    def __init__(self, job: Job, count: int, shared: Path) -> None:
        self._job = job
        self._shared = shared
        self._count = count
        self._announced = False
        self._stopped, self._stop = _spawn.Pipe(duplex=False)
        self._workers: list[_Worker] = []
        self._due: list[tuple[float, int]] = []
        self._ended: list[int] = []  # whose counts are still to be added up

    def run(self) -> int:
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            Share.make(self._shared / _CONNECTIONS, self._count)
            self._workers = [_Worker(self._job, self._shared, place) for place in range(self._count)]
            return self._keep()
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._stop.send(None)

    def _keep(self) -> int:
        while True:
            heard: list[Connection | int] = [self._stopped, *(worker.process.sentinel for worker in self._workers)]
            heard += [worker.pipe for worker in self._workers if worker.line is None]
            if self._stopped in wait(heard, _TICK_S):
                return 0
            for worker in list(self._workers):
                worker.hear()
                if worker.process.exitcode is not None and not self._goes_on_without(worker):
                    return EXIT_ERROR
            self._replace()
            self._inherit()
            self._announce()

    def _goes_on_without(self, worker: _Worker) -> bool:
        """Plan a replacement for a worker that ended; false, with one line on stderr, where that would not help."""
        self._workers.remove(worker)
        self._forget(worker)
        if worker.process.pid is not None:
            self._ended.append(worker.process.pid)
        reason = worker.reason or f"a worker process ended with status {worker.process.exitcode}."
        # One that can't serve is tried again only as long as others serve what it can't.
        if not self._announced or (worker.reason and not any(other.line for other in self._workers)):
            print(f"error: {reason}", file=sys.stderr)
            return False
        self._due.append((worker.due(), worker.crashes))
        _log.error("worker ended", extra={"pid": worker.process.pid, "reason": reason})
        return True

    def _replace(self) -> None:
        now = monotonic()
        for due in [due for due in self._due if due[0] <= now]:
            self._due.remove(due)
            place = min(set(range(self._count)) - {worker.place for worker in self._workers})
            try:
                self._workers.append(_Worker(self._job, self._shared, place, due[1]))
            except OSError as error:  # such as no memory for one more process; the others serve meanwhile
                _log.error("no worker can be started", extra={"reason": str(error)})
                self._due.append((now + _LONGEST_PAUSE_S, due[1]))

    def _inherit(self) -> None:
        for pid in list(self._ended):
            try:
                if inherit(self._shared, pid):
                    self._ended.remove(pid)
            except OSError:  # such as a full disk; its files stay, and count
                _log.exception("what a worker counted can't be added up")
                self._ended.remove(pid)
            except Exception:  # a file that was cut off, and is gone now; the next time takes the others
                _log.exception("what a worker counted is lost")

    def _announce(self) -> None:
        if not self._announced and all(worker.line for worker in self._workers):
            self._announced = True
            announce(f"{self._workers[0].line} in {self._count} processes at {self._job.address}")

    def _end_all(self) -> None:
        for worker in self._workers:
            worker.process.terminate()
        until = monotonic() + self._job.settings.shutdown_grace_s + _KILL_AFTER_S
        for worker in self._workers:
            worker.process.join(max(0.0, until - monotonic()))
            if worker.process.exitcode is None:
                worker.process.kill()
                worker.process.join()
            self._forget(worker)

    def _forget(self, worker: _Worker) -> None:
        worker.pipe.close()
        Share(self._shared / _CONNECTIONS, worker.place).leave()


def run_workers(job: Job, count: int) -> int:
    """Serve with `count` processes until SIGTERM or SIGINT, and give the exit code.

    2, with one line on stderr, where a worker can't begin, and where none is left that can.
    """
    with tempfile.TemporaryDirectory(prefix="lightretriever-") as shared:
        code = _Supervisor(job, count, Path(shared)).run()
    if code == 0:
        _log.info("stopped")
    return code


@contextmanager
def _metrics_in(folder: Path) -> Iterator[None]:
    """Let processes started here keep their metrics in a folder; the library wants to know before it is imported."""
    os.environ[METRICS_FOLDER] = str(folder)
    try:
        yield
    finally:
        del os.environ[METRICS_FOLDER]


def _work(job: Job, shared: Path, place: int, pipe: Connection) -> None:
    """Serve, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the server is there to handle it; the parent stops us
    configure_logging(job.settings.log_level)
    Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    heard = _said(shared)  # what is said from now on is of a version that may not be the one opened here
    try:
        with Serving.open(job.bundle, job.settings) as serving:
            family = _Family(serving, shared, heard)
            serving.on_reload = family.tell
            Thread(target=family.listen, daemon=True).start()
            serve(
                serving,
                job.listener,
                on_ready=lambda: _tell_ready(serving, pipe),
                share=Share(shared / _CONNECTIONS, place),
            )
            family.over.set()
            serving.metrics.refresh()  # the last second's times, for those that go on
    except LightRetrieverError as error:
        pipe.send(_Failed(str(error)))
        sys.exit(EXIT_ERROR)


def _tell_ready(serving: Serving, pipe: Connection) -> None:
    serving.metrics.refresh()  # whoever hears that it is ready may ask for them
    pipe.send(_Ready(ready_line(serving)))


def _end_with_parent(pipe: Connection) -> None:
    """Stop when the parent is gone, however it went: nobody else would stop us."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)


class _Family:
    """Lets the workers reload together, and keeps the metrics that tell a state up to date."""

    def __init__(self, serving: Serving, shared: Path, heard: str) -> None:
        """`heard` is what had been said before the bundle was opened."""
        self.over = Event()
        self._serving = serving
        self._shared = shared
        self._heard = heard

    def tell(self) -> None:
        """Let the others reload too."""
        (self._shared / _RELOAD).write_text(f"{os.getpid()} {monotonic()}", encoding="utf-8")

    def listen(self) -> None:
        """Do what the others say, until it is over."""
        while not self.over.wait(_TICK_S):
            try:
                said = _said(self._shared)
                if said != self._heard and said and said.partition(" ")[0] != str(os.getpid()):
                    self._serving.ask()
                self._heard = said
                self._serving.metrics.refresh()
            except Exception:  # such as a full disk; the next second may be better
                _log.exception("listening to other workers failed")


def _said(shared: Path) -> str:
    """Which worker was asked to reload last, and when."""
    try:
        return (shared / _RELOAD).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
