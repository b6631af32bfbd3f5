"""Worker processes: spawned by uvicorn's supervisor, which replaces one that ends or hangs.

A worker that unpickles this module imports the engine only then, so that it answers its supervisor meanwhile.
"""

import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe, parent_process
from multiprocessing.connection import Connection as PipeEnd
from tempfile import TemporaryDirectory, gettempdir
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.supervisors import Multiprocess

from lightretriever.artifacts.errors import LightRetrieverError, OutputError
from lightretriever.service.cgroup import memory_bytes, processors
from lightretriever.service.errors import SettingsError
from lightretriever.service.serving.config import Certificates, server_config
from lightretriever.service.settings import Settings

if TYPE_CHECKING:
    from lightretriever.service.collections.collections import Folders
    from lightretriever.service.http.app import Application

METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
_MAX_WORKERS: Final = 4
_WORKER_BYTES: Final = 512 << 20  # of memory for each process, beside the files that all share; see docs/sizing.md

_log = logging.getLogger(__name__)


@dataclass
class _Worker:
    """Makes the application of a worker process, and tells the supervisor what comes of it."""

    bundles: "Folders"
    settings: Settings
    certificates: Certificates
    sender: PipeEnd
    replaces: bool = False
    """True once all workers were ready: one that can't start does not end the others then, and is tried again."""

    def __call__(self) -> "Application":
        from lightretriever.service.serving.server import open_worker

        Thread(target=_end_with_supervisor, daemon=True).start()
        try:
            app = open_worker(self.bundles, self.settings, os.getppid(), lambda: self.sender.send(None))
        except LightRetrieverError as error:
            self.sender.send(str(error))
            if not self.replaces:
                sys.exit(STARTUP_FAILURE)
            _log.error("worker can't start", extra={"reason": str(error)})
            sys.exit(1)
        _log.info("worker started", extra={"pid": os.getpid()})
        app.state.watched += self.certificates.watched()
        return app


def _end_with_supervisor() -> None:
    if (supervisor := parent_process()) is not None:
        supervisor.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _Supervisor(Multiprocess):
    """uvicorn's supervisor, which prints a line when all its workers are ready."""

    def __init__(
        self, config: Config, sockets: list[socket.socket], worker: _Worker, receiver: PipeEnd, line: str
    ) -> None:
        super().__init__(config, sockets)
        self.failure = "A worker process can't start."
        self._worker, self._receiver, self._line = worker, receiver, line
        self._ready = 0

    def keep_subprocess_alive(self) -> None:
        """Replace workers that ended or hang, and read what workers say."""
        super().keep_subprocess_alive()
        while self._receiver.poll():
            message = self._receiver.recv()
            self.failure = message or self.failure
            self._ready += message is None
            if self._ready == self.config.workers and not self._worker.replaces:
                self._worker.replaces = True
                announce(self._line)


def automatic_workers(settings: Settings) -> int:
    """Return the number of processes to serve with: one for each processor that the system and the cgroup grant, at
    most 4, and one for each 512 MiB of memory; one where a model or written documents are each process's own, and where
    there is no temporary folder for the metrics that processes share."""
    with suppress(OSError):
        gettempdir()
        if settings.recipe is None and settings.live is None:
            return max(1, min(_MAX_WORKERS, processors(), memory_bytes() // _WORKER_BYTES))
    return 1


def run_workers(
    bundles: "Folders", settings: Settings, listeners: Sequence[socket.socket], count: int, line: str
) -> None:
    """Serve in `count` spawned processes: a JVM doesn't survive a fork. LightRetrieverError if one can't start. Prints
    `line` on stdout when all are ready. SIGUSR1 of a worker has all look for a new bundle."""
    receiver, sender = Pipe(duplex=False)
    with _shared_folder() as metrics:
        os.environ[METRICS_FOLDER] = metrics  # prometheus_client reads it on import
        certificates, chosen = Certificates(settings), settings.for_processes(count)
        worker = _Worker(bundles, chosen, certificates, sender)
        hangup = signal.getsignal(signal.SIGHUP)  # of a terminal that closes, which uvicorn would take for a reload
        config = server_config(worker, chosen, certificates, workers=count)
        supervisor = _Supervisor(config, list(listeners), worker, receiver, line)

        def reload(*_: Any) -> None:
            for process in supervisor.processes:
                if process.pid is not None and process.exitcode is None:
                    os.kill(process.pid, signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, reload)
        signal.signal(signal.SIGHUP, hangup)
        supervisor.run()
        if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
            raise LightRetrieverError(supervisor.failure)


def _shared_folder() -> "TemporaryDirectory[str]":
    try:
        return TemporaryDirectory(prefix="lightretriever-")
    except OSError as error:
        raise SettingsError(
            f"--workers needs a folder that it can write to, for the metrics that they share: {error.strerror}.",
            remedy="Name one in TMPDIR, in a container by --tmpfs /tmp, or serve with one process.",
        ) from error


def announce(line: str) -> None:
    """Print a line on stdout; ignore a full disk or a closed pipe."""
    with suppress(OSError, OutputError):
        print(line, flush=True)
