"""The commands `upsert` and `delete`: documents written while they are searched, on one machine or on a cluster."""

from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from lightretriever.artifacts.bundle.manifest import Manifest, read_manifest
from lightretriever.artifacts.cli.live import (
    CaFileOption,
    LiveOption,
    MaybeIndexOption,
    MaybeToOption,
    Target,
    UserOption,
    opened_target,
)
from lightretriever.artifacts.cli.options import BUILT, DeviceOption, LimitOption, SkipOption, WorkOption, built
from lightretriever.artifacts.cli.runner import JsonOption, report_skipped, running
from lightretriever.artifacts.corpus.beir import Corpus, read_ids
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.errors import BundleError, DocumentError, importing
from lightretriever.artifacts.live.documents import check_names
from lightretriever.artifacts.live.upsert import delete as delete_documents
from lightretriever.artifacts.live.upsert import upsert as upsert_documents
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.artifacts.summary import Summary, left_out

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.later import LaterDocuments


def upsert(
    corpus: Annotated[Path, typer.Argument(help="Corpus file or BEIR folder.", show_default=False)],
    recipe: Annotated[Path, typer.Option("--recipe", help="The recipe of the bundle.")],
    live: LiveOption = None,
    to: MaybeToOption = None,
    index: MaybeIndexOption = None,
    user: UserOption = None,
    ca_file: CaFileOption = None,
    device: DeviceOption = None,
    work: WorkOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="The bundle that the documents are written beside (output).")
    ] = None,
    limit: LimitOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the new and changed documents of a corpus to a journal or a cluster; encode those with new text."""
    with running("upsert", as_json=as_json) as job:
        loaded = read_recipe(recipe, Recipe, {"model.device": device, "work": work, "output": output})
        manifest = read_manifest(loaded.output)
        check = partial(_check_names, manifest)
        documents = Corpus(corpus, skip_bad=skip_bad, limit=limit, fields=manifest.fields, check=check)
        with opened_target(live, loaded.output, to, user, ca_file, index) as target:
            _check_bundle(target, manifest)

            @cache
            def encoder() -> "LaterDocuments":
                """Load the model, when the first document has to be encoded."""
                with importing("pipeline"):
                    from lightretriever.artifacts.pipeline.later import LaterDocuments
                return LaterDocuments.open(loaded, manifest, target.live.most_impact)

            with TemporaryDirectory(prefix="upsert-", ignore_cleanup_errors=True) as folder:
                checked = EncodedCorpus.of(documents, Path(folder))  # the whole corpus, before anything is written
                total = len(checked)
                if manifest.sparse.vocabulary != "tokens":
                    start_jvm()  # splits texts into words
                with ProgressBar("upsert", total=total, unit="documents") as progress:
                    counts = upsert_documents(target.live, checked, lambda new: encoder().encode(new), progress.advance)
            cut = encoder().cut if counts.encoded else 0
            line = (
                f"{target.path}: of {total:,} documents {counts.encoded:,} encoded ({counts.created:,} new), "
                f"{counts.fields:,} with other fields, {counts.unchanged:,} unchanged"
            )
            left = {"skipped": documents.skipped.count, "cut": cut}
            facts = {"index": target.index, "documents": total, **vars(counts), **left}
            job.summary = Summary(target.path, [line, *left_out(**left)], facts)
        report_skipped(documents.skipped.reasons)


def _check_names(manifest: Manifest, document: Document) -> None:
    try:
        check_names(document.names, manifest.field_names)
    except DocumentError as error:
        raise ValueError(f'document "{document.id}": {error.message.removesuffix(".")}') from error


def _check_bundle(target: Target, manifest: Manifest) -> None:
    """Raise BundleError where the index at a place is not of the recipe's bundle."""
    version, name = target.bundle
    if version != manifest.digest:
        raise BundleError(
            f"{target.index} has version {version[:12]} of {name!r}; the recipe's bundle is version "
            f"{manifest.digest[:12]} of {manifest.name!r}.",
            remedy="Push this bundle, or give the recipe of the one that the index was written from.",
        )


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
            opened_target(live, None if bundle is None else built(bundle), to, user, ca_file, index) as target,
            ProgressBar("delete", total=len(names), unit="ids") as progress,
        ):
            counts = delete_documents(target.live, names, progress.advance)
            such = (
                f", such as {', '.join(f'{example!r:.80}' for example in counts.examples)}" if counts.examples else ""
            )
            line = f"{target.path}: {counts.deleted:,} documents deleted, {counts.missing:,} were not there{such}"
            job.summary = Summary(target.path, [line], {"index": target.index, **vars(counts)})
