"""The commands of a journal: `compact`, one bundle of a bundle and of what was written beside it, and `restore`."""

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
            compacted, contained = compact_bundle(
                opened, live, output, queries=sample, overwrite=overwrite, done=progress.advance
            )
        count, position = compacted.manifest.documents, contained.position
        job.summary = Summary(
            str(output),
            [f"{output}: {count:,} documents, with the changes up to number {position:,}"],
            {"version": compacted.manifest.digest, "documents": count, "position": position},
        )


def restore(
    copy: Annotated[Path, typer.Argument(help="The copy of a journal that a backup made.", show_default=False)],
    live: Annotated[Path, typer.Option("--live", help="Folder of the journal.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Put a copy of a journal in its place, while no service uses the folder; keep the former files."""
    from lightretriever.artifacts.live.restore import restore as restore_journal

    with running("restore", as_json=as_json) as job:
        position, kept = restore_journal(copy, live)
        lines = [f"{live}: restored, with the changes up to number {position:,}"]
        lines += [] if kept is None else [f"the former journal is in {kept}"]
        facts = {"position": position, "kept": None if kept is None else str(kept)}
        job.summary = Summary(str(live), lines, facts)
