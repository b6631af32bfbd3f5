"""What long offline commands share: their options, and how they run, which can be stopped, and end.

Progress and errors go to stderr, the summary goes to stdout. With `--json` the summary is one JSON object, and an error
is one as well, `{"error": …}`, beside the line on stderr.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final

import typer

from lightretriever.artifacts.errors import DiskError, LightRetrieverError, readable
from lightretriever.artifacts.pipeline.recipe import AnyRecipe, read_recipe
from lightretriever.artifacts.reports import Summary
from lightretriever.artifacts.signals import Stopped, commit_point, stoppable

BundleArgument = Annotated[Path, typer.Argument(help="The bundle's folder.", show_default=False)]
TaskOption = Annotated[str | None, typer.Option(help="The bundle's task (default: the bundle's default task).")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Hugging Face id, directory or .gguf (model.path).")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, … (model.device).")]
WorkOption = Annotated[Path | None, typer.Option("--work", help="Directory of intermediate files (work).")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Only the first N documents (corpus.limit).")]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad corpus lines out instead of stopping.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an existing bundle.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as one JSON object.")]

_KEYS: Final = {
    "corpus": "corpus.path",
    "model": "model.path",
    "adapter": "model.adapter",
    "device": "model.device",
    "head_queries": "head.queries",
    "top": "head.top",
    "work": "work",
    "output": "output",
    "limit": "corpus.limit",
    "dimension": "index.dimension",
    "top_k": "index.top_k",
    "skip_bad": "corpus.skip_bad",
}
"""The keys of a recipe that options of these names replace."""

_GOING_ON: Final = ("build", "delete", "push", "train", "upsert")
"""Commands that keep what they have finished when they are stopped."""


@dataclass
class Job:
    """A command under way. Its `summary` is printed at the end; with none, nothing is."""

    summary: Summary | None = None


@contextmanager
def running(command: str, *, as_json: bool, quietly: bool = False) -> Iterator[Job]:
    """Run a command of this name in the block, which is to give the job its summary.

    SIGINT and SIGTERM end the process with status 130 or 143 and a line that says what the next run does (see
    `artifacts.signals`). With `as_json` an error is printed as JSON too, and goes on to whoever prints it for people.
    `quietly`: another process tells of signals and errors. Raises DiskError, which names the file, for what the system
    says of one.
    """
    job, began = Job(), monotonic()
    try:
        with stoppable():
            yield job
            commit_point()
            if job.summary is not None:
                job.summary.seconds = round(monotonic() - began, 3)
                typer.echo(job.summary.json(command) if as_json else job.summary.text())
    except (Exception, Stopped) as raised:
        error = raised
        if isinstance(raised, OSError) and isinstance(raised.filename, str | bytes):
            what = f"{readable(os.fsdecode(raised.filename))}: {raised.strerror}."
            error = DiskError(what, remedy="Look at the path, its permissions and free space.")
        facts = _error_facts(error, command)
        if isinstance(error, Stopped) and not quietly:
            typer.echo(f"{facts['message']} {facts['remedy']}", err=True)
        if as_json and not quietly:
            typer.echo(json.dumps({"error": facts}))
        if isinstance(error, Stopped):
            sys.exit(facts["status"])
        if error is raised:
            raise
        raise error from raised


def report_skipped(reasons: Iterable[str]) -> None:
    """Say on stderr why parts of a corpus were left out; the summary has their number."""
    for reason in reasons:
        typer.echo(f"skipped: {reason}", err=True)


def _error_facts(error: BaseException, command: str) -> dict[str, Any]:
    """An error as it is printed as JSON: `kind` is its class, `status` the exit status."""
    message, remedy, status = str(error), "", 1
    if isinstance(error, Stopped):
        goes_on = "goes on where it was" if command in _GOING_ON else "begins again; nothing of it is left"
        message, remedy, status = f"{error}.", f"The same command {goes_on}.", 128 + error.number
    elif isinstance(error, LightRetrieverError):
        message, remedy, status = error.message, error.remedy, 2
    return {"kind": type(error).__name__, "message": message, "remedy": remedy, "status": status}


def overridden(context: typer.Context, kind: type[AnyRecipe], data: Path | None = None) -> AnyRecipe:
    """The recipe of this `kind` that a command was given, with the options that it was called with; paths of training
    data are below the folder `data`."""
    options = {_KEYS[name]: value for name, value in context.params.items() if name in _KEYS and value is not False}
    return read_recipe(context.params["recipe"], kind, options, data)
