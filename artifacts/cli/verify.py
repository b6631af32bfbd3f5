"""The command `verify`: checks a bundle."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from lightretriever.artifacts.bundle.manifest import Manifest, read_manifest
from lightretriever.artifacts.bundle.verify import Problem, verify_bundle
from lightretriever.artifacts.cli.options import BundleArgument
from lightretriever.artifacts.cli.runner import JsonOption, next_command, running
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.summary import Summary, megabytes

__all__ = ["VerifySummary", "verify"]


class VerifySummary(Summary):
    """Of `verify`. `documents`, `files` and `bytes` are what the manifest says, null where it can't be read."""

    command: Literal["verify"] = "verify"
    sound: bool
    problems: list[Problem]
    documents: int | None
    files: int | None
    bytes: int | None

    def made(self) -> Iterator[str]:
        """The problems, or that there are none."""
        yield from map(str, self.problems)
        if self.sound and self.bytes is not None:
            size = f"{self.documents:,} documents, {self.files} files, {megabytes(self.bytes)}"
            yield f"{self.path}: sound, {size}"
        else:
            yield f"{self.path}: not sound, {len(self.problems)} problems"


def verify(
    context: typer.Context,
    bundle: BundleArgument,
    query_bundle: Annotated[
        bool, typer.Option("--query-bundle", help="The bundle is a query bundle, without indexes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every file, hash, shape and count of a bundle; exit status 1 when something is wrong."""
    with running("verify", as_json=as_json) as job:
        manifest = _manifest(bundle)
        sizes = [] if manifest is None else [file.bytes for file in manifest.files.values()]
        with ProgressBar("verify", total=2 * sum(size // 1000 for size in sizes), unit="kB") as progress:
            problems = verify_bundle(bundle, lambda size: progress.advance(size // 1000), indexes=not query_bundle)
        job.summary = VerifySummary(
            path=str(bundle),
            sound=not problems,
            problems=problems,
            documents=None if manifest is None else manifest.documents,
            files=None if manifest is None else len(sizes),
            bytes=None if manifest is None else sum(sizes),
        )
        if not problems:
            job.summary.next = None if query_bundle else next_command(context, "serve", bundle)
    if problems:
        raise typer.Exit(1)


def _manifest(bundle: Path) -> Manifest | None:
    try:
        return read_manifest(bundle)
    except BundleError:
        return None
