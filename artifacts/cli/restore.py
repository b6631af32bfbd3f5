"""The command `restore`: a copy of a journal put in its place."""

from pathlib import Path
from typing import Annotated

import typer

from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.summary import Summary

__all__ = ["restore"]


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
