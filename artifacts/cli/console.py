"""How a console command prints, and how it ends."""

import errno
import io
import os
import resource
import sys
from typing import Any, Final, TextIO

import typer

from lightretriever.artifacts.errors import JavaError, LightRetrieverError, OutputError

__all__ = ["run_console"]

_ERROR: Final = 2
_CLOSED_PIPE: Final = 141  # as a shell tells of a program that SIGPIPE ended
_LEAST_MEMORY: Final = 900_000_000  # bytes of address space; with less, libraries end the process when they are loaded


def run_console(app: typer.Typer) -> None:
    """Run a command line; an expected error is one line on stderr and exit status 2.

    So is output that can't be written, also to a stdout that is closed; a reader that closes the pipe ends the command
    with status 141 and without a word. Characters that the output's encoding lacks are printed as escapes. What can't
    be written to stderr is lost."""
    sys.stdout = _checked(sys.stdout, _Output)
    sys.stderr = _checked(sys.stderr, _Lossy)
    try:
        try:
            _check_memory()
            app()
        finally:
            sys.stdout.flush()
    except LightRetrieverError as error:
        _end(error)
    except BaseExceptionGroup as group:  # of the tasks of a server
        found, others = group.split(OutputError)
        if found is None or others is not None:
            raise
        _end(_first(found))


def _check_memory() -> None:
    """Raise JavaError, as where Java itself lacks it, for too little address space."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _LEAST_MEMORY:
        raise JavaError(
            f"This process may have {limit:,} bytes of address space, too few to load its libraries.",
            remedy="Lift the limit, ulimit -v unlimited, and bound memory by a control group, as containers do.",
        )


def _end(error: LightRetrieverError) -> None:
    if isinstance(error, OutputError) and error.closed:
        sys.exit(_CLOSED_PIPE)
    typer.echo(f"error: {error}", err=True)
    sys.exit(_ERROR)


def _first(group: BaseExceptionGroup[OutputError]) -> OutputError:
    error = group.exceptions[0]
    return error if isinstance(error, OutputError) else _first(error)


class _Output(io.FileIO):
    """Standard output. OutputError if it can't be written, once: then whatever else is printed is dropped."""

    _broken = False

    def write(self, data: Any, /) -> int:
        if not self._broken:
            try:
                return super().write(data)
            except OSError as error:
                self._broken = True
                raise OutputError(error.strerror or str(error), closed=error.errno == errno.EPIPE) from error
        return memoryview(data).nbytes


class _Closed(io.RawIOBase):
    """A standard output that whoever began this process has closed. OutputError for what is written to it, once."""

    _told = False

    def writable(self) -> bool:
        """Return True, as of any output."""
        return True

    def write(self, data: Any, /) -> int:
        """Raise OutputError, the first time."""
        if not self._told and memoryview(data).nbytes:
            self._told = True
            raise OutputError("it is closed", closed=False)
        return memoryview(data).nbytes


class _Lossy(io.FileIO):
    """Standard error. What can't be written is dropped."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def _checked(stream: TextIO | None, kind: type[io.FileIO]) -> TextIO:
    """The stream over a file of this kind, if it is one that a process begins with."""
    if stream is None and kind is _Output:
        os.open(os.devnull, os.O_WRONLY)  # else the next file would be what libraries take for standard output
        return io.TextIOWrapper(io.BufferedWriter(_Closed()), encoding="utf-8", errors="backslashreplace")
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # it lives as long as the process
    if not any(stream is one for one in (sys.__stdout__, sys.__stderr__)):
        return stream
    stream.flush()
    raw = kind(stream.fileno(), "wb", closefd=False)
    lines = stream.isatty() or kind is _Lossy
    buffer = io.BufferedWriter(raw)
    return io.TextIOWrapper(buffer, encoding=stream.encoding, errors="backslashreplace", line_buffering=lines)
