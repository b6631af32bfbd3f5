"""The command `delete`: documents deleted while they are searched, on one machine or on a cluster."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from lightretriever.artifacts.cli.cluster import CaFileOption, MaybeIndexOption, MaybeToOption, UserOption
from lightretriever.artifacts.cli.live import LiveOption, opened_place
from lightretriever.artifacts.cli.options import BUILT, built
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.corpus.beir import read_ids
from lightretriever.artifacts.live.upsert import delete as delete_documents
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.summary import Summary

__all__ = ["DeleteSummary", "delete"]


class DeleteSummary(Summary):
    """Of `delete`: `path` and `index` as in `UpsertSummary`, `missing` is the number of ids that no document had, and
    `examples` are the first of these."""

    command: Literal["delete"] = "delete"
    index: str
    deleted: int
    missing: int
    examples: list[str]

    def made(self) -> Iterator[str]:
        """One line."""
        such = f", such as {', '.join(f'{one!r:.80}' for one in self.examples)}" if self.examples else ""
        yield f"{self.path}: {self.deleted:,} documents deleted, {self.missing:,} were not there{such}"


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
            job.summary = DeleteSummary(path=place.path, index=place.index, **vars(counts))
