"""The command `verify`: checks a bundle."""

from pathlib import Path
from typing import Annotated

import typer
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.cli.runner import JsonOption, next_command, running
from lightretriever.artifacts.cli.summaries import kilobytes_listed, verify_summary
from lightretriever.artifacts.progress import ProgressBar

__all__ = ["verify"]


def verify(
    context: typer.Context,
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.", show_default=False)],
    query_bundle: Annotated[bool, typer.Option("--query-bundle", help="It is one without indexes.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every file, hash, shape and count of a bundle; exit status 1 when something is wrong."""
    with running("verify", as_json=as_json) as job:
        with ProgressBar("verify", total=2 * kilobytes_listed(bundle), unit="kB") as progress:
            problems = verify_bundle(bundle, lambda size: progress.advance(size // 1000), indexes=not query_bundle)
        job.summary = verify_summary(bundle, problems)
        if not problems:
            job.summary.next = None if query_bundle else next_command(context, "serve", bundle)
    if problems:
        raise typer.Exit(1)
