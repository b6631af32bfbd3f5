"""A server process under test: start, wait, measure from outside, stop."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Timer
from time import perf_counter
from typing import Final, Self, TypeVar
from weakref import finalize

from lightretriever.loadtest.connection import LoadError

ROOT: Final = Path(__file__).resolve().parents[1]
_STOP_S: Final = 30
_LAST: Final = 600
T = TypeVar("T")


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this checkout."""
    return [sys.executable, "-m", module, *arguments]


class Server:
    """A process that prints `Ready: … ADDRESS` on stdout when it takes requests. Use it as a context. `ready_s` is the
    time from the start of the process to that line, `url` the address. Raises LoadError, with the end of the process's
    output, if it ends before or takes longer than `patience_s`."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str] | None = None, patience_s: float = 1800
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the process
        begun = perf_counter()
        try:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
            self._end = finalize(self, _end, self._process)
        except OSError as error:
            self._errors.close()
            raise LoadError(f"{command[0]} can't be started: {error}.") from error
        alarm = Timer(patience_s, self._process.kill)
        alarm.daemon = True  # Python does not wait for it at exit
        try:
            alarm.start()
            self.url = self._await_ready(command)
        except BaseException:
            self.close()
            raise
        finally:
            alarm.cancel()
        self.ready_s = perf_counter() - begun

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def cpu_s(self) -> float:
        """Return the seconds of a processor that the process and its children took. Raise LoadError if one ended."""
        return sum(self._of_each(lambda pid: time.clock_gettime((~pid << 3) | 2)))  # clock_getcpuclockid(3) of Linux

    def switches(self) -> int:
        """Return the context switches so far of all their threads that live. Raise LoadError if a process ended."""
        return sum(self._of_each(_switches))

    def memory_mb(self) -> float:
        """Return the memory of the process and its children in MiB: private pages, and 1/n of each page that n
        processes map (Linux's Pss). Raise LoadError if one ended."""
        return round(sum(self._of_each(_memory_mb)), 1)

    def _of_each(self, read: Callable[[int], T]) -> list[T]:
        """Call `read` with the ids of the process and its children."""
        try:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
            return [read(pid) for pid in (self.pid, *map(int, children.split()))]
        except OSError as error:
            raise LoadError(f"A process of the server {self.pid} is gone: {self._written()}") from error

    def close(self) -> None:
        """End the process. Idempotent."""
        self._end()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _await_ready(self, command: Sequence[str]) -> str:
        for line in self._process.stdout or ():
            if line.startswith("Ready: "):
                return line.split()[-1]
        self._process.wait()
        raise LoadError(f"{' '.join(command)} ended before it was ready: {self._written()}")

    def _written(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()[-_LAST:] or "it wrote nothing on stderr."


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def finish(command: Sequence[str]) -> None:
    """Run a command to its end. Raises LoadError with the end of its output if it fails."""
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise LoadError(f"{' '.join(command)} ended with {run.returncode}: {run.stderr.strip()[-_LAST:]}")


def _switches(pid: int) -> int:
    found = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (thread / "status").read_text(encoding="ascii", errors="replace").splitlines()
        except (ProcessLookupError, FileNotFoundError):  # it has ended since
            continue
        found += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return found


def _memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
