"""How a console command prints, and how it ends."""

import errno
import io
import os
import sys
from typing import Any, Final, TextIO

import typer

from lightretriever.artifacts.errors import LightRetrieverError, OutputError

_ERROR: Final = 2
_CLOSED_PIPE: Final = 141  # as a shell tells of a program that SIGPIPE ended
_STDOUT, _STDERR = 1, 2


def run_console(app: typer.Typer) -> None:
    """Run a command line; an expected error is one line on stderr and exit status 2.

    So is output that can't be written, also to a stdout that is closed; a reader that closes the pipe ends the command
    with status 141 and without a word. Characters that the output's encoding lacks are printed as escapes. What can't
    be written to stderr is lost."""
    sys.stdout, sys.stderr = _checked(sys.stdout, _STDOUT), _checked(sys.stderr, _STDERR)
    failed: BaseException | None = None
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except* LightRetrieverError as group:  # a server has several tasks, each with an error of its own
        failed = group
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    if isinstance(failed, OutputError) and failed.closed:
        sys.exit(_CLOSED_PIPE)
    if failed is not None:
        typer.echo(f"error: {failed}", err=True)
        sys.exit(_ERROR)


class _Checked(io.FileIO):
    """A standard stream. OutputError, once, if stdout can't be written; what else can't be written is dropped."""

    _broken = False

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self._broken or self.fileno() == _STDERR:
                return memoryview(data).nbytes
            self._broken = True
            reason = "it is closed" if error.errno == errno.EBADF else error.strerror or str(error)
            raise OutputError(reason, closed=error.errno == errno.EPIPE) from error


def _checked(stream: TextIO | None, number: int) -> TextIO:
    """The stream over a checked file, if it is one that a process begins with."""
    if stream is None:  # closed: else the next file would be what libraries take for the stream
        os.dup2(os.open(os.devnull, os.O_RDONLY), number)
    elif stream not in (sys.__stdout__, sys.__stderr__):
        return stream
    encoding = "utf-8" if stream is None else stream.encoding
    raw = _Checked(number, "wb", closefd=False)
    lines = raw.isatty() or number == _STDERR
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors="backslashreplace", line_buffering=lines)
