"""How every long offline command runs: it can be stopped, and ends with a summary or with an error, as text or JSON.

Progress and errors go to stderr, the summary goes to stdout. With `--json` the summary is one JSON object, and an error
is one as well, `{"error": …}`, beside the line on stderr.
"""

import os
import shlex
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from time import monotonic
from typing import Annotated, Any, Final, NoReturn

import typer

from lightretriever.artifacts.corpus.beir import Skipped
from lightretriever.artifacts.errors import DiskError, LightRetrieverError, readable
from lightretriever.artifacts.progress import ProgressBar, reporting
from lightretriever.artifacts.signals import Stopped, commit_point, stoppable
from lightretriever.artifacts.summary import Part, Summary, Text, left_out

__all__ = [
    "AGAIN",
    "ErrorInfo",
    "ErrorObject",
    "Job",
    "JsonOption",
    "error_info",
    "next_command",
    "report_skipped",
    "running",
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")]

AGAIN: Final = {
    "corpus": "The same command begins again; nothing of it is left.",
    "train": "The same command goes on from the last checkpoint.",
    "build": "The same command goes on where it was.",
    "verify": "The same command begins again; nothing was changed.",
    "push": "The same command goes on after the last written documents; the alias is as it was.",
    "upsert": "The same command goes on with the documents that are missing.",
    "delete": "The same command goes on with the documents that are left.",
    "compact": "The same command begins again; nothing of it is left, and the journal is as it was.",
    "restore": "The same command begins again; the journal is as it was.",
    "export": "The same command begins again; nothing of it is left.",
    "evaluate": "The same command begins again; no result was changed.",
}
"""By command, what the next run does after a stop."""

_ERROR_STATUS: Final = 2  # of the errors that this project raises; that of Python's is 1


class ErrorInfo(Part):
    """An error: `kind` is its class, `status` the exit status."""

    kind: str
    message: Text
    remedy: Text
    status: int


class ErrorObject(Part):
    """The text on stdout in place of the summary."""

    error: ErrorInfo


@dataclass
class Job:
    """A command under way. Its `summary` is printed at the end; with none, nothing is. `quietly`: another process tells
    how it was stopped or failed."""

    command: str
    as_json: bool
    quietly: bool = False
    summary: Summary | None = None
    _began: float = field(default_factory=monotonic)

    def end(self) -> None:
        """Print the summary."""
        if self.summary is not None:
            self.summary.command = self.command
            self.summary.seconds = round(monotonic() - self._began, 3)
            typer.echo(self.summary.model_dump_json() if self.as_json else self.summary.text())

    def fail(self, error: ErrorInfo) -> None:
        """Print an error as JSON, where that is asked for."""
        if self.as_json and not self.quietly:
            typer.echo(ErrorObject(error=error).model_dump_json())

    def stop(self, stopped: Stopped) -> NoReturn:
        """End the process as one that a signal stopped: 130 for SIGINT, 143 for SIGTERM."""
        status, again = 128 + stopped.number, AGAIN[self.command]
        if not self.quietly:
            typer.echo(f"{stopped}. {again}", err=True)
            self.fail(ErrorInfo(kind="Stopped", message=f"{stopped}.", remedy=again, status=status))
        sys.exit(status)


@contextmanager
def running(command: str, *, as_json: bool, quietly: bool = False) -> Iterator[Job]:
    """Run a command of this name in the block, which is to give the job its summary.

    SIGINT and SIGTERM end it as `Job.stop` says (see `artifacts.signals`). With `as_json` an error is printed as JSON
    too, and goes on to whoever prints it for people. `quietly`: another process tells of signals and errors. Raises
    DiskError for an error of the system that names a file.
    """
    job = Job(command, as_json, quietly)
    try:
        with stoppable():
            with nullcontext() if quietly else reporting(command), _of_files():
                yield job
            commit_point()
            job.end()
    except Stopped as stopped:
        ProgressBar.end_display()
        job.stop(stopped)
    except Exception as error:
        job.fail(error_info(error))
        raise


@contextmanager
def _of_files() -> Iterator[None]:
    """Raise DiskError, which names the file, for what the system says of one that nothing below expects."""
    try:
        yield
    except OSError as error:
        if not isinstance(error.filename, str | bytes):
            raise
        raise DiskError(
            f"{readable(os.fsdecode(error.filename))}: {error.strerror}.",
            remedy="Look at the path, its permissions and free space.",
        ) from error


def report_skipped(skipped: Skipped, what: str = "corpus lines", cut: int = 0) -> None:
    """Say on stderr what of a corpus was left out or cut, where something was."""
    for reason in skipped.reasons:
        typer.echo(f"skipped: {reason}", err=True)
    if skipped.count:
        typer.echo(f"{skipped.count} bad {what} were skipped", err=True)
    for line in left_out(0, cut):
        typer.echo(line, err=True)


def error_info(error: Exception) -> ErrorInfo:
    """An error as it is printed as JSON."""
    kind = type(error).__name__
    if isinstance(error, LightRetrieverError):
        return ErrorInfo(kind=kind, message=error.message, remedy=error.remedy, status=_ERROR_STATUS)
    return ErrorInfo(kind=kind, message=str(error), remedy="", status=1)


def next_command(context: typer.Context, name: str, *arguments: object, shared: Collection[str] | None = None) -> str:
    """A command line of `lightretriever`, with those options of the present command that it has as well: of the
    `shared` ones, where they are named, because others mean something else there."""
    group: Any = context.find_root().command
    words = ["lightretriever", name, *map(str, arguments)]
    for option in group.commands[name].params:
        value = context.params.get(option.name)
        given = value is not None and value is not False and option.name != "as_json"
        if option.param_type_name == "option" and given and (shared is None or option.name in shared):
            words += option.opts[:1] if value is True else [option.opts[0], str(value)]
    return shlex.join(words)
