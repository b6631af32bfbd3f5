"""The command `compact`: one bundle of a bundle and of what was written beside it."""

from pathlib import Path
from typing import Annotated

import typer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cli.options import BUILT, OverwriteOption, built
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.corpus.beir import read_queries
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.artifacts.summary import Summary

__all__ = ["compact"]


def compact(
    bundle: Annotated[Path, typer.Argument(help=BUILT, show_default=False)],
    live: Annotated[Path, typer.Option("--live", help="Folder of the journal.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", help="The bundle to write.", show_default=False)],
    queries: Annotated[
        Path | None, typer.Option("--queries", help="Sample of queries that lays out a large dense index.")
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a bundle of a bundle's documents and those written beside it, while a service goes on; encode nothing."""
    from lightretriever.artifacts.live.compact import compact as compact_bundle

    with running("compact", as_json=as_json) as job:
        opened = Bundle.open(built(bundle))
        start_jvm()
        sample = [] if queries is None else list(read_queries(queries).values())
        with ProgressBar("compact", total=opened.manifest.documents, unit="documents") as progress:
            made, contained = compact_bundle(
                opened, live, output, queries=sample, overwrite=overwrite, done=progress.advance
            )
        count, position = made.manifest.documents, contained.position
        job.summary = Summary(
            str(output),
            [f"{output}: {count:,} documents, with the changes up to number {position:,}"],
            {"version": made.manifest.digest, "documents": count, "position": position},
        )
