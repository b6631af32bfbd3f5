"""The command `delete`: documents deleted while they are searched, on one machine or on a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from lightretriever.artifacts.cli.live import (
    CaFileOption,
    LiveOption,
    MaybeIndexOption,
    MaybeToOption,
    UserOption,
    opened_place,
)
from lightretriever.artifacts.cli.options import BUILT, built
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.corpus.beir import read_ids
from lightretriever.artifacts.live.upsert import delete as delete_documents
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.summary import Summary

__all__ = ["delete"]


def delete(
    ids: Annotated[Path, typer.Argument(help="File with the id of a document on each line.", show_default=False)],
    bundle: Annotated[Path | None, typer.Option("--bundle", help=f"{BUILT} For --live.", show_default=False)] = None,
    live: LiveOption = None,
    to: MaybeToOption = None,
    index: MaybeIndexOption = None,
    user: UserOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete documents from a journal or a cluster."""
    with running("delete", as_json=as_json) as job:
        names = read_ids(ids)
        with (
            opened_place(live, None if bundle is None else built(bundle), to, user, ca_file, index) as place,
            ProgressBar("delete", total=len(names), unit="ids") as progress,
        ):
            counts = delete_documents(place.live, names, progress.advance)
            such = (
                f", such as {', '.join(f'{example!r:.80}' for example in counts.examples)}" if counts.examples else ""
            )
            line = f"{place.path}: {counts.deleted:,} documents deleted, {counts.missing:,} were not there{such}"
            job.summary = Summary(place.path, [line], {"index": place.index, **vars(counts)})
