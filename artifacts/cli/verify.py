"""The command `verify`: checks a bundle."""

from contextlib import suppress
from typing import Annotated, Any

import typer

from lightretriever.artifacts.bundle.manifest import read_manifest
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.cli.options import BundleArgument
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.summary import Summary, megabytes


def verify(
    bundle: BundleArgument,
    query_bundle: Annotated[
        bool, typer.Option("--query-bundle", help="The bundle is a query bundle, without indexes.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check every file, hash, shape and count of a bundle; exit status 1 when something is wrong."""
    with running("verify", as_json=as_json) as job:
        manifest = None
        with suppress(BundleError):
            manifest = read_manifest(bundle)
        sizes = [] if manifest is None else [file.bytes for file in manifest.files.values()]
        with ProgressBar("verify", total=2 * sum(size // 1000 for size in sizes), unit="kB") as progress:
            problems = verify_bundle(bundle, lambda size: progress.advance(size // 1000), indexes=not query_bundle)
        lines, facts = [str(problem) for problem in problems], dict[str, Any](documents=None, files=None, bytes=None)
        if manifest is not None:
            facts = {"documents": manifest.documents, "files": len(sizes), "bytes": sum(sizes)}
        if problems or manifest is None:
            lines += [f"{bundle}: not sound, {len(problems)} problems"]
        else:
            size = f"{manifest.documents:,} documents, {len(sizes)} files, {megabytes(sum(sizes))}"
            lines += [f"{bundle}: sound, {size}"]
        facts |= {"sound": not problems, "problems": list(map(vars, problems))}
        job.summary = Summary(str(bundle), lines, facts)
    if problems:
        raise typer.Exit(1)
