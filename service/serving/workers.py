"""Worker processes: spawned, replaced when one ends or hangs, and stopped together.

They are not forked, because a JVM doesn't survive a fork. A worker sends its supervisor pairs of a word and a text
through a pipe: "alive" every second; "ready"; "failed", with the reason; "reload", which the supervisor forwards to the
other workers.
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from threading import Thread
from time import monotonic, sleep
from typing import Final

from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.observability.metrics import METRICS_FOLDER
from lightretriever.service.search.reload import EngineHolder
from lightretriever.service.serving.server import EXIT_ERROR, announce, leave_hanging_calls, ready_line, serve
from lightretriever.service.settings import Settings
from prometheus_client.multiprocess import mark_process_dead

__all__ = ["run_workers"]

_log = logging.getLogger(__name__)
_spawn: Final = multiprocessing.get_context("spawn")
_BEAT_S: Final = 1.0
_SILENT_S: Final = 15.0  # a worker silent for so long is killed and replaced
_PAUSE_S: Final = 2.0  # before replacing a worker that was never ready
_KILL_AFTER_S: Final = 10.0  # beyond the grace period of requests in flight


class _Worker:
    """A worker process as the supervisor sees it."""

    def __init__(self, bundle: Path, settings: Settings, listener: socket.socket, pause_s: float = 0.0) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self.process = _spawn.Process(target=_work, args=(bundle, settings, listener, theirs, pause_s))
        self.process.start()
        theirs.close()
        self.said: dict[str, str] = {}
        self._heard = monotonic()

    def alive(self) -> bool:
        """Read its messages, and kill it if it was silent for too long. False if it ended."""
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                self.said.update([self.pipe.recv()])
                self._heard = monotonic()
        if self.process.exitcode is None and monotonic() - self._heard > _SILENT_S:
            self.process.kill()
            self.process.join()
        return self.process.exitcode is None


def run_workers(bundle: Path, settings: Settings, listener: socket.socket, count: int, address: str) -> int:
    """Serve in `count` processes until SIGTERM or SIGINT, and give the exit code.

    2, with one line on stderr, if a worker ends before all were ready, or fails while no other is ready. Prints the
    served bundle and `address` on stdout when all are ready.
    """
    stopped, stop = _spawn.Pipe(duplex=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.send(None))
    start = partial(_Worker, bundle, settings, listener)
    with TemporaryDirectory(prefix="lightretriever-") as metrics:
        os.environ[METRICS_FOLDER] = metrics  # prometheus_client reads it on import
        workers = [start() for _ in range(count)]
        try:
            return _supervise(workers, start, stopped, metrics, address)
        finally:
            _end(workers, settings.shutdown_grace_s + _KILL_AFTER_S)
            del os.environ[METRICS_FOLDER]


def _supervise(
    workers: list[_Worker], start: Callable[[float], _Worker], stopped: Connection, metrics: str, address: str
) -> int:
    """Replace workers that end until `stopped` has a message. `start` takes the pause before the start in seconds."""
    ready = False
    while stopped not in wait([stopped, *(worker.process.sentinel for worker in workers)], _BEAT_S):
        for place, worker in [(place, worker) for place, worker in enumerate(workers) if not worker.alive()]:
            mark_process_dead(worker.process.pid or 0, metrics)
            reason = worker.said.get("failed") or f"a worker process ended with status {worker.process.exitcode}."
            if not ready or ("failed" in worker.said and not any("ready" in other.said for other in workers)):
                print(f"error: {reason}", file=sys.stderr)
                return EXIT_ERROR
            _log.error("worker replaced", extra={"pid": worker.process.pid, "reason": reason})
            try:
                workers[place] = start(0.0 if "ready" in worker.said else _PAUSE_S)
            except OSError:  # such as no memory for another process; the next beat tries again
                _log.exception("no worker can be started")
        for asker in [worker for worker in workers if worker.said.pop("reload", None)]:
            for other in [worker for worker in workers if worker is not asker]:
                other.pipe.send(True)
        if not ready and (ready := all("ready" in worker.said for worker in workers)):
            announce(f"{workers[0].said['ready']} in {len(workers)} processes at {address}")
    return 0


def _end(workers: list[_Worker], grace_s: float) -> None:
    for worker in workers:
        worker.process.terminate()
    until = monotonic() + grace_s
    for worker in workers:
        worker.process.join(max(0.0, until - monotonic()))
        worker.process.kill()


def _work(bundle: Path, settings: Settings, listener: socket.socket, pipe: Connection, pause_s: float) -> None:
    """Serve in a worker process, and report to the supervisor through the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor stops its workers
    sleep(pause_s)
    configure_logging(settings.log_level)
    told: SimpleQueue[tuple[str, str]] = SimpleQueue()
    holders: list[EngineHolder] = []
    beat = Thread(target=_beat, args=(pipe, told, holders), daemon=True)
    beat.start()
    try:
        with EngineHolder.open(bundle, settings) as holder:
            holders.append(holder)
            holder.on_reload = lambda: told.put(("reload", "asked"))
            serve(holder, listener, on_ready=lambda: told.put(("ready", ready_line(holder))))
    except LightRetrieverError as error:
        told.put(("failed", str(error)))
        beat.join()
        sys.exit(EXIT_ERROR)
    leave_hanging_calls(holder)


def _beat(pipe: Connection, told: "SimpleQueue[tuple[str, str]]", holders: list[EngineHolder]) -> None:
    """Send "alive" every second, and the messages in `told`; reload if the supervisor forwards a reload."""
    reload = False
    with suppress(EOFError, OSError):
        while True:
            try:
                said = told.get(timeout=_BEAT_S)
            except Empty:
                said = ("alive", "")
            pipe.send(said)
            if said[0] == "failed":
                return
            while pipe.poll():
                reload = bool(pipe.recv())
            for holder in holders:  # none while the bundle opens
                holder.metrics.refresh()
                if reload:
                    holder.ask()
                    reload = False
    os.kill(os.getpid(), signal.SIGTERM)  # the supervisor has gone, and nothing else would stop this process
