"""The commands on a bundle that is built: `verify`, `export`, `push` and, while it is searched, `upsert`, `delete`,
`compact` and `restore`. What needs an extra is imported when a command runs."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from typer import Argument, Option

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE, Manifest, check_outside, read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.bundle.writer import write_query_bundle
from lightretriever.artifacts.cli.runner import (
    BundleArgument,
    DeviceOption,
    JsonOption,
    LimitOption,
    OverwriteOption,
    SkipOption,
    TaskOption,
    WorkOption,
    report_skipped,
    running,
)
from lightretriever.artifacts.corpus.beir import Corpus, read_ids, read_queries
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.errors import BundleError, DocumentError, RecipeError, importing
from lightretriever.artifacts.files.atomic import check_target
from lightretriever.artifacts.live.compact import compact as compact_bundle
from lightretriever.artifacts.live.documents import LiveDocuments, check_names
from lightretriever.artifacts.live.documents import delete as delete_documents
from lightretriever.artifacts.live.documents import upsert as upsert_documents
from lightretriever.artifacts.live.journal import restore as restore_journal
from lightretriever.artifacts.live.store import LiveStore
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from lightretriever.artifacts.reports import ProgressBar, Summary, folder_size, left_out, megabytes
from lightretriever.artifacts.sparse.jvm import start_jvm

if TYPE_CHECKING:
    from lightretriever.artifacts.cluster.client import Cluster
    from lightretriever.artifacts.pipeline.later import LaterDocuments

_BUILT: Final = "The bundle's folder, or the recipe that it was built by."
_PREFIX: Final = "LIGHTRETRIEVER_OPENSEARCH_"  # the variables of the service's settings
_EXAMPLES: Final = 3  # ids that no document had

_TO: Final = Option("--to", envvar=f"{_PREFIX}URL", help="Addresses of the cluster's nodes, by comma.")
_INDEX: Final = Option("--index", envvar=f"{_PREFIX}INDEX", help="Alias of the index.")
_CA_FILE: Final = Option("--ca-file", envvar=f"{_PREFIX}CA_FILE", help="Authority of the certificates (PEM).")
_LIVE: Final = Option("--live", help="Folder of the journal, on one machine.", show_default=False)
UserOption = Annotated[str | None, Option("--user", envvar=f"{_PREFIX}USER", help="Name of the user.")]


def verify(
    bundle: BundleArgument,
    query_bundle: Annotated[bool, Option("--query-bundle", help="It is a query bundle, without indexes.")] = False,
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


def export(
    bundle: BundleArgument,
    directory: Annotated[Path, Argument(metavar="DIR", help="The folder to write.", show_default=False)],
    to: Annotated[Literal["sentence-transformers"], Option(help="The library that reads it.")],
    model: Annotated[str | None, Option(help="Encoder of the documents, id or folder; else queries alone.")] = None,
    task: TaskOption = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an earlier export.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the query encoder as a model of sentence-transformers, for another vector store."""
    with running("export", as_json=as_json) as job:
        with importing("pipeline"):
            from lightretriever.artifacts.pipeline.export import export_sentence_transformer
        opened = Bundle.open(bundle, indexes=False)
        named = task or opened.manifest.default_task
        warnings = export_sentence_transformer(opened, directory, task=named, model=model, overwrite=overwrite)
        head, dimension, size = opened.manifest.tasks[named].head, opened.manifest.dimension, folder_size(directory)[1]
        what = "queries alone" if model is None else f"queries, and documents by {model}"
        lines = [f"{directory}: {what}, task {named}, {dimension} values, {megabytes(size)}"]
        if head is not None:
            lines += [f"  without the bundle's {head.queries:,} head queries: they get the mean of their tokens' rows"]
        facts = {"task": named, "dimension": dimension, "encoder": model, "warnings": warnings, "bytes": size}
        facts["head_queries"] = 0 if head is None else head.queries
        job.summary = Summary(str(directory), [*lines, *(f"warning: {warning}" for warning in warnings)], facts)


def push(
    bundle: BundleArgument,
    to: Annotated[str, _TO],
    index: Annotated[str, _INDEX],
    shards: Annotated[int, Option(min=1, max=1024, help="Shards of the index.")] = 1,
    replicas: Annotated[int, Option(min=0, max=100, help="Copies of each shard.")] = 1,
    user: UserOption = None,
    ca_file: Annotated[Path | None, _CA_FILE] = None,
    query_bundle: Annotated[Path | None, Option(help="Write the part that a service on the cluster needs.")] = None,
    delete_old: Annotated[bool, Option("--delete-old", help="Remove the alias' former index.")] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing query bundle.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a bundle to an OpenSearch cluster, check it, and point the alias to it; a stopped run continues."""
    with importing("cluster"):
        from lightretriever.artifacts.cluster.push import push as push_bundle
    with running("push", as_json=as_json) as job:
        opened = Bundle.open(bundle)
        if query_bundle is not None:
            check_outside(query_bundle)
            check_target(query_bundle, overwrite=overwrite, marker=MANIFEST_FILE)
        with closing(_connected(to, user, ca_file)) as cluster:
            summary = push_bundle(opened, cluster, index, shards=shards, replicas=replicas, delete_old=delete_old)
        if query_bundle is not None:
            write_query_bundle(opened, query_bundle, overwrite=overwrite)
            summary.facts["query_bundle"] = str(query_bundle)
            summary.lines.append(f"{query_bundle}: the query bundle")
        job.summary = summary


def upsert(
    corpus: Annotated[Path, Argument(help="Corpus file or BEIR folder.", show_default=False)],
    recipe: Annotated[Path, Option(help="The recipe of the bundle.")],
    live: Annotated[Path | None, _LIVE] = None,
    to: Annotated[str | None, _TO] = None,
    index: Annotated[str | None, _INDEX] = None,
    user: UserOption = None,
    ca_file: Annotated[Path | None, _CA_FILE] = None,
    device: DeviceOption = None,
    work: WorkOption = None,
    output: Annotated[Path | None, Option(help="The bundle that documents are written beside (output).")] = None,
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
        with _opened_target(live, loaded.output, to, user, ca_file, index) as target:
            if target.version != manifest.digest:
                raise BundleError(
                    f"{target.index} has version {target.version[:12]} of {target.bundle!r}; the recipe's bundle is "
                    f"version {manifest.digest[:12]} of {manifest.name!r}.",
                    remedy="Push this bundle, or give the recipe of the one that the index was written from.",
                )

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
            left = {"skipped": documents.skipped.count, "cut": encoder().cut if counts.encoded else 0}
        line = (
            f"{target.path}: of {total:,} documents {counts.encoded:,} encoded ({counts.created:,} new), "
            f"{counts.fields:,} with other fields, {counts.unchanged:,} unchanged"
        )
        facts = {"index": target.index, "documents": total, **vars(counts), **left}
        job.summary = Summary(target.path, [line, *left_out(**left)], facts)
        report_skipped(documents.skipped.reasons)


def _check_names(manifest: Manifest, document: Document) -> None:
    try:
        check_names(document.names, manifest.field_names)
    except DocumentError as error:
        raise ValueError(f'document "{document.id}": {error.message.removesuffix(".")}') from error


def delete(
    ids: Annotated[Path, Argument(help="File with the id of a document on each line.", show_default=False)],
    bundle: Annotated[Path | None, Option(help=f"{_BUILT} For --live.", show_default=False)] = None,
    live: Annotated[Path | None, _LIVE] = None,
    to: Annotated[str | None, _TO] = None,
    index: Annotated[str | None, _INDEX] = None,
    user: UserOption = None,
    ca_file: Annotated[Path | None, _CA_FILE] = None,
    as_json: JsonOption = False,
) -> None:
    """Delete documents from a journal or a cluster."""
    with running("delete", as_json=as_json) as job:
        names = read_ids(ids)
        with (
            _opened_target(live, None if bundle is None else _built(bundle), to, user, ca_file, index) as target,
            ProgressBar("delete", total=len(names), unit="ids") as progress,
        ):
            deleted, missing = delete_documents(target.live, names, progress.advance)
        examples = missing[:_EXAMPLES]
        such = f", such as {', '.join(f'{example!r:.80}' for example in examples)}" if examples else ""
        line = f"{target.path}: {deleted:,} documents deleted, {len(missing):,} were not there{such}"
        facts = {"index": target.index, "deleted": deleted, "missing": len(missing), "examples": examples}
        job.summary = Summary(target.path, [line], facts)


def compact(
    bundle: Annotated[Path, Argument(help=_BUILT, show_default=False)],
    live: Annotated[Path, Option(help="Folder of the journal.", show_default=False)],
    output: Annotated[Path, Option(help="The bundle to write.", show_default=False)],
    queries: Annotated[Path | None, Option(help="Sample of queries that lays out a large dense index.")] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a bundle of a bundle's documents and those written beside it, while a service goes on; encode nothing."""
    with running("compact", as_json=as_json) as job:
        opened = Bundle.open(_built(bundle))
        start_jvm()
        sample = [] if queries is None else list(read_queries(queries).values())
        with ProgressBar("compact", total=opened.manifest.documents, unit="documents") as progress:
            compacted, contained = compact_bundle(
                opened, live, output, queries=sample, overwrite=overwrite, done=progress.advance
            )
        count, position = compacted.manifest.documents, contained.position
        lines = [f"{output}: {count:,} documents, with the changes up to number {position:,}"]
        facts = {"version": compacted.manifest.digest, "documents": count, "position": position}
        job.summary = Summary(str(output), lines, facts)


def restore(
    copy: Annotated[Path, Argument(help="The copy of a journal that a backup made.", show_default=False)],
    live: Annotated[Path, Option(help="Folder of the journal.", show_default=False)],
    as_json: JsonOption = False,
) -> None:
    """Put a copy of a journal in its place, while no service uses the folder; keep the former files."""
    with running("restore", as_json=as_json) as job:
        position, kept = restore_journal(copy, live)
        lines = [f"{live}: restored, with the changes up to number {position:,}"]
        lines += [] if kept is None else [f"the former journal is in {kept}"]
        facts = {"position": position, "kept": None if kept is None else str(kept)}
        job.summary = Summary(str(live), lines, facts)


def _built(path: Path) -> Path:
    """The folder of a bundle, or that in which a recipe's bundle is. Raises RecipeError."""
    return read_recipe(path, Recipe).output if path.is_file() else path


@dataclass(frozen=True)
class _Target:
    """Where documents are changed: a journal's folder or a cluster's alias, the index there, and the version and the
    name of the bundle that it is of."""

    path: str
    index: str
    version: str
    bundle: str
    live: LiveDocuments


@contextmanager
def _opened_target(
    live: Path | None, bundle: Path | None, to: str | None, user: str | None, ca_file: Path | None, index: str | None
) -> Iterator[_Target]:
    """The place that the options name. Raises RecipeError where they name none, and what opening it raises."""
    if live is not None and bundle is not None:
        opened = Bundle.open(bundle)
        start_jvm()
        with opened.sparse() as sparse:
            manifest = opened.manifest
            dense = None if manifest.dense is None else opened.dense()
            with closing(LiveStore(live, manifest, sparse, dense)) as store:
                yield _Target(str(live), manifest.digest, manifest.digest, manifest.name, store)
    elif live is None and to is not None and index is not None:
        with closing(_connected(to, user, ca_file)) as cluster:
            from lightretriever.artifacts.cluster.client import only_index, read_meta
            from lightretriever.artifacts.cluster.live import LiveIndex

            name = only_index(cluster, index)
            meta = read_meta(cluster, name)
            documents = LiveIndex(cluster, index, name, meta)
            yield _Target(f"{cluster.name}/{index}", name, meta.version, meta.bundle, documents)
    else:
        raise RecipeError("It is not said where to write.", remedy="Give --live and a bundle, or --to and --index.")


def _connected(urls: str, user: str | None, ca_file: Path | None) -> "Cluster":
    """Connect with the secrets of the environment, because options would show them to all users of the machine. Raises
    ClusterError, and MissingExtraError."""
    with importing("cluster"):
        from lightretriever.artifacts.cluster.client import ClusterAddress, connect
    password, api_key = (os.environ.get(_PREFIX + name) for name in ("PASSWORD", "API_KEY"))
    return connect(ClusterAddress(urls, user, password, api_key, ca_file), timeout_s=120, retry_late=True)
