"""Worker processes: spawned, as a JVM doesn't survive a fork, replaced when one ends or hangs, and stopped together.

A worker tells its supervisor "ready", "failed" or "reload". The supervisor sends SIGUSR1 to the others for a reload,
and passes SIGHUP on.
"""

import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.context import SpawnProcess
from tempfile import TemporaryDirectory, gettempdir
from threading import Thread
from time import monotonic, sleep
from typing import Final

from prometheus_client.multiprocess import mark_process_dead

from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.collections.collections import Collections, Folders
from lightretriever.service.errors import SettingsError
from lightretriever.service.granted import memory_bytes, processors
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.observability.metrics import METRICS_FOLDER
from lightretriever.service.serving.server import announce, ready_line, serve
from lightretriever.service.settings import Settings

__all__ = ["Silence", "automatic_workers", "run_workers"]

_log = logging.getLogger(__name__)
_BEAT_S: Final = 0.5
_MOST_COUNTED_S: Final = 4 * _BEAT_S
_LOADING_S: Final = 120.0  # until the first beat, when Python has loaded the service
_MOST_WORKERS: Final = 4
_WORKER_BYTES: Final = 512 << 20  # of memory for each process, beside the files that all share; see docs/sizing.md
_PATIENCE_S: Final = 15.0  # a worker that is silent, or takes to end after the grace period, for so long is killed


def automatic_workers(
    settings: Settings, granted: int | None = None, memory: int | None = None
) -> tuple[int, str | None]:
    """Give the number of processes to serve with, and the reason for less than one for each processor, if there is one.

    One for each of the `granted` processors, None: those that the system and the cgroup grant; at most 4, and one for
    each 512 MiB of `memory`, in bytes. One process alone where a model or written documents are each process's
    own, and where no folder takes the metrics that processes share.
    """
    wanted = min(_MOST_WORKERS, processors() if granted is None else granted)
    if wanted == 1:
        return 1, None
    if settings.recipe is not None:
        return 1, "each process would load the model of the recipe"
    if settings.live is not None:
        return 1, "each process keeps what was written in its own memory"
    try:
        gettempdir()
    except OSError:
        return 1, "there is no temporary folder for the metrics that processes share"
    fitting = max(1, (memory_bytes() if memory is None else memory) // _WORKER_BYTES)
    return (fitting, f"each needs {_WORKER_BYTES >> 20} MiB of memory") if fitting < wanted else (wanted, None)


class Silence:
    """How long a worker has been silent, without the time in which its supervisor did not look: when a whole machine or
    container was suspended, that is no fault of the worker's. Times are in seconds, of `monotonic`."""

    def __init__(self, now: float) -> None:
        self._silent_s = 0.0
        self._looked = now

    def heard(self, now: float) -> None:
        """Note that the worker has been heard of."""
        self._silent_s, self._looked = 0.0, now

    def lasts(self, now: float) -> float:
        """Give the seconds of silence up to a look, which count for at most `_MOST_COUNTED_S` since the last one."""
        self._silent_s += min(now - self._looked, _MOST_COUNTED_S)
        self._looked = now
        return self._silent_s


class _Worker(SpawnProcess):
    def __init__(self, bundles: Folders, settings: Settings, listeners: Sequence[socket.socket]) -> None:
        super().__init__()
        self.said: dict[str, str] = {}
        self._bundles, self._settings, self._listeners = bundles, settings, list(listeners)
        self._supervisor = os.getpid()
        self._messages, self._tell = Pipe(duplex=False)
        self._beats, self._pulse = Pipe(duplex=False)  # shared memory would need a folder to write to
        self._patience_s = _LOADING_S
        self._silence = Silence(monotonic())
        self.start()

    def well(self) -> bool:
        """Read its messages, and kill it if it was silent for too long. False if it ended."""
        while self._messages.poll():
            self.said.update([self._messages.recv()])
        while self._beats.poll():
            self._beats.recv_bytes()
            self._silence.heard(monotonic())
            self._patience_s = _PATIENCE_S
        if self._silence.lasts(monotonic()) > self._patience_s:
            self.kill()
        return self.is_alive()

    def run(self) -> None:
        """Serve in the worker process; say "ready" with a description of the bundle, or "failed" with the reason."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor stops its workers
        configure_logging(self._settings.log_level)
        Thread(target=self._beat, daemon=True).start()
        try:
            with Collections.open(self._bundles, self._settings) as collections:
                collections.each(on_reload=lambda: self._tell.send(("reload", "asked")))
                signal.signal(signal.SIGUSR1, lambda *_: [holder.ask() for holder in collections])
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # it may have come while the bundle opened
                serve(
                    collections,
                    self._listeners,
                    lambda: self._tell.send(("ready", ready_line(collections))),
                    shared=True,
                )
        except LightRetrieverError as error:
            self._tell.send(("failed", str(error)))

    def _beat(self) -> None:
        while os.getppid() == self._supervisor:
            with suppress(OSError):  # the supervisor has ended, and has its end of the pipe no more
                self._pulse.send_bytes(b"beat")
            sleep(_BEAT_S)
        os.kill(os.getpid(), signal.SIGTERM)  # nothing else would stop this process


def run_workers(
    bundles: Folders, settings: Settings, listeners: Sequence[socket.socket], count: int, address: str
) -> None:
    """Serve in `count` processes until SIGTERM or SIGINT.

    SettingsError if there is no folder for their metrics. LightRetrieverError if a worker ends before all were ready,
    or fails while no other is ready. Prints the served bundle and `address` on stdout when all are ready.
    """
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopped.append(number))
    hung_up: list[int] = []
    if not os.isatty(0) and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, _: hung_up.append(number))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # in the workers, too, until they can handle it
    with _shared_folder() as metrics:
        os.environ[METRICS_FOLDER] = metrics  # prometheus_client reads it on import
        workers = [_Worker(bundles, settings, listeners) for _ in range(count)]
        ready = False
        try:
            while not stopped:
                sleep(_BEAT_S)
                for place, worker in [(place, worker) for place, worker in enumerate(workers) if not worker.well()]:
                    mark_process_dead(worker.pid or 0, metrics)
                    reason = worker.said.get("failed") or f"a worker process ended with status {worker.exitcode}."
                    if not ready or ("failed" in worker.said and not any("ready" in other.said for other in workers)):
                        raise LightRetrieverError(reason)
                    _log.error("worker replaced", extra={"pid": worker.pid, "reason": reason})
                    try:
                        workers[place] = _Worker(bundles, settings, listeners)
                    except OSError:  # such as no memory for another process; the next beat tries again
                        _log.exception("no worker can be started")
                while hung_up:
                    hangup = hung_up.pop()
                    for worker in [worker for worker in workers if "ready" in worker.said]:
                        os.kill(worker.pid or 0, hangup)
                for asked in [worker for worker in workers if worker.said.pop("reload", None)]:
                    for other in [worker for worker in workers if worker is not asked]:
                        os.kill(other.pid or 0, signal.SIGUSR1)
                if not ready and (ready := all("ready" in worker.said for worker in workers)):
                    announce(f"{workers[0].said['ready']} in {count} processes at {address}")
        finally:
            for listener in listeners:
                listener.close()  # the last worker to stop then answers what still waits to be accepted
            for worker in workers:
                worker.terminate()
            until = monotonic() + settings.shutdown_grace_s + _PATIENCE_S
            for worker in workers:
                worker.join(max(0.0, until - monotonic()))
                worker.kill()


def _shared_folder() -> "TemporaryDirectory[str]":
    try:
        return TemporaryDirectory(prefix="lightretriever-")
    except OSError as error:
        raise SettingsError(
            f"--workers needs a folder that it can write to, for the metrics that they share: {error.strerror}.",
            remedy="Name one in TMPDIR, in a container by --tmpfs /tmp, or serve with one process.",
        ) from error
