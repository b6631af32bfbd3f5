"""The command `restore`: a copy of a journal put in its place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.summary import Summary

__all__ = ["RestoreSummary", "restore"]


class RestoreSummary(Summary):
    """Of `restore`: `path` is the journal's folder, which has the changes up to the one numbered `position`; `kept` is
    the folder of the former journal's files."""

    command: Literal["restore"] = "restore"
    position: int
    kept: str | None

    def made(self) -> Iterator[str]:
        """One line, and one of the former journal."""
        yield f"{self.path}: restored, with the changes up to number {self.position:,}"
        if self.kept is not None:
            yield f"the former journal is in {self.kept}"


def restore(
    copy: Annotated[Path, typer.Argument(help="The copy of a journal that a backup made.", show_default=False)],
    live: Annotated[Path, typer.Option("--live", help="Folder of the journal.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Put a copy of a journal in its place, while no service uses the folder; keep the former files."""
    from lightretriever.artifacts.live.restore import restore as restore_journal

    with running("restore", as_json=as_json) as job:
        position, kept = restore_journal(copy, live)
        job.summary = RestoreSummary(path=str(live), position=position, kept=None if kept is None else str(kept))
