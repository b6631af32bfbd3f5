"""Several worker processes: started afresh, replaced when one ends or falls silent, and stopped together.

Nothing is forked, because a Java virtual machine doesn't survive that. A worker tells its
supervisor through a pipe, in pairs of a word and a text: "alive" every second; "ready"; "failed", with the reason;
"reload", which the supervisor passes on to the others.
"""

import logging
import multiprocessing
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from time import monotonic, sleep
from typing import Final

__all__ = ["run_workers"]

_log = logging.getLogger(__name__)
_spawn: Final = multiprocessing.get_context("spawn")
_BEAT_S: Final = 1.0
_SILENT_S: Final = 15.0  # then a worker hangs: it is killed and replaced
_PAUSE_S: Final = 2.0  # before a worker begins that takes the place of one which was never ready
_FAILED: Final = 2

Work = Callable[[Connection], None]
"""What a worker does, given its end of the pipe; it can be pickled."""


class _Worker:
    """A worker process as the supervisor sees it."""

    def __init__(self, work: Work, pause_s: float = 0.0) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self.process = _spawn.Process(target=_run, args=(work, theirs, pause_s))
        self.process.start()
        theirs.close()
        self.said: dict[str, str] = {}
        self._heard = monotonic()

    def alive(self) -> bool:
        """Take in what it said; false if it ended, or was silent for so long that it is killed."""
        with suppress(EOFError, OSError):
            while self.pipe.poll():
                self.said.update([self.pipe.recv()])
                self._heard = monotonic()
        if self.process.exitcode is None and monotonic() - self._heard > _SILENT_S:
            self.process.kill()
            self.process.join()
        return self.process.exitcode is None


def run_workers(
    work: Work, count: int, *, grace_s: float, on_ready: Callable[[str], None], on_end: Callable[[int], None]
) -> int:
    """Run `work` in `count` processes until SIGTERM or SIGINT, and give the exit code.

    2, with one line on stderr, where a worker can't begin, and where none is left that can. `on_ready` gets what the
    first one says when all are ready, `on_end` the process id of each that ended; `grace_s` is the time to stop in.
    """
    stopped, stop = _spawn.Pipe(duplex=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.send(None))
    workers = [_Worker(work) for _ in range(count)]
    try:
        ready = False
        while stopped not in wait([stopped, *(worker.process.sentinel for worker in workers)], _BEAT_S):
            for place, worker in [(place, worker) for place, worker in enumerate(workers) if not worker.alive()]:
                on_end(worker.process.pid or 0)
                reason = worker.said.get("failed") or f"a worker process ended with status {worker.process.exitcode}."
                if not ready or ("failed" in worker.said and not any("ready" in other.said for other in workers)):
                    print(f"error: {reason}", file=sys.stderr)
                    return _FAILED
                _log.error("worker replaced", extra={"pid": worker.process.pid, "reason": reason})
                try:
                    workers[place] = _Worker(work, 0.0 if "ready" in worker.said else _PAUSE_S)
                except OSError:  # such as no memory for one more process; the next beat tries again
                    _log.exception("no worker can be started")
            for asker in [worker for worker in workers if worker.said.pop("reload", None)]:
                for other in [worker for worker in workers if worker is not asker]:
                    other.pipe.send(True)
            if not ready and (ready := all("ready" in worker.said for worker in workers)):
                on_ready(workers[0].said["ready"])
        return 0
    finally:
        _end(workers, grace_s)


def _end(workers: list[_Worker], grace_s: float) -> None:
    for worker in workers:
        worker.process.terminate()
    until = monotonic() + grace_s
    for worker in workers:
        worker.process.join(max(0.0, until - monotonic()))
        worker.process.kill()


def _run(work: Work, pipe: Connection, pause_s: float) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor stops its workers
    sleep(pause_s)
    work(pipe)
