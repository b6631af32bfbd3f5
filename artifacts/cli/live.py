"""The commands `upsert` and `delete`: documents of an index on an OpenSearch cluster, changed while it is searched."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from lightretriever.artifacts.bundle.manifest import Manifest, read_manifest
from lightretriever.artifacts.cli.cluster import CaFileOption, IndexOption, ToOption, UserOption, connected
from lightretriever.artifacts.cli.options import (
    DeviceOption,
    LimitOption,
    OutputOption,
    SkipOption,
    WorkOption,
    recipe_of,
)
from lightretriever.artifacts.cli.runner import JsonOption, report_skipped, running
from lightretriever.artifacts.cli.summary import Summary, left_out
from lightretriever.artifacts.corpus.beir import Corpus, Document
from lightretriever.artifacts.corpus.bounds import check_id
from lightretriever.artifacts.corpus.lines import read_lines, read_text
from lightretriever.artifacts.errors import BundleError, CorpusError, MissingExtraError
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.sparse.jvm import start_jvm

if TYPE_CHECKING:
    from lightretriever.artifacts.cluster.live import LiveIndex
    from lightretriever.artifacts.cluster.upsert import Upserted
    from lightretriever.artifacts.live.documents import Encoded
    from lightretriever.artifacts.pipeline.later import LaterDocuments

__all__ = ["DeleteSummary", "UpsertSummary", "delete", "upsert"]


class UpsertSummary(Summary):
    """Of `upsert`: `path` is the alias on the cluster. Of the documents, `unchanged` were there already, `fields` got
    other fields and kept their vectors, and the model read the `encoded`, of which `created` are new."""

    command: Literal["upsert"]
    index: str
    documents: int
    unchanged: int
    fields: int
    encoded: int
    created: int
    skipped: int
    cut: int

    def made(self) -> Iterator[str]:
        """A line, and those of `left_out`."""
        yield (
            f"{self.path}: of {self.documents:,} documents {self.encoded:,} encoded ({self.created:,} new), "
            f"{self.fields:,} with other fields, {self.unchanged:,} unchanged"
        )
        yield from left_out(self.skipped, self.cut)


class DeleteSummary(Summary):
    """Of `delete`: `path` is the alias on the cluster, `missing` are ids that no document had."""

    command: Literal["delete"]
    index: str
    deleted: int
    missing: int

    def made(self) -> Iterator[str]:
        """One line."""
        yield f"{self.path}: {self.deleted:,} documents deleted, {self.missing:,} were not there"


def upsert(
    context: typer.Context,
    corpus: Annotated[Path, typer.Argument(help="Corpus file or BEIR folder.", show_default=False)],
    recipe: Annotated[Path, typer.Option("--recipe", help="The recipe of the bundle that was pushed.")],
    to: ToOption,
    index: IndexOption,
    user: UserOption = None,
    ca_file: CaFileOption = None,
    device: DeviceOption = None,
    work: WorkOption = None,
    output: OutputOption = None,
    limit: LimitOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write the documents of a corpus that an index on a cluster lacks or has otherwise; encode those with new text."""
    with running("upsert", as_json=as_json) as job:
        loaded = recipe_of(context)
        manifest = read_manifest(loaded.output)
        documents = Corpus(corpus, skip_bad=skip_bad, limit=limit, fields=manifest.fields)
        with _opened(to, user, ca_file, index) as live:
            encoder = _Encoder(loaded, manifest, live)
            counts, total = _upsert(live, documents, manifest, encoder)
            job.summary = UpsertSummary(
                command="upsert",
                path=f"{live.cluster.name}/{index}",
                index=live.index,
                documents=total,
                **vars(counts),
                skipped=documents.skipped.count,
                cut=encoder.cut,
            )
        report_skipped(documents.skipped, cut=encoder.cut)


def delete(
    ids: Annotated[Path, typer.Argument(help="File with the id of a document on each line.", show_default=False)],
    to: ToOption,
    index: IndexOption,
    user: UserOption = None,
    ca_file: CaFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete documents from an index on a cluster."""
    with running("delete", as_json=as_json) as job:
        names = _read_ids(ids)
        with _opened(to, user, ca_file, index) as live, ProgressBar("delete", total=len(names), unit="ids") as progress:
            from lightretriever.artifacts.cluster.upsert import delete as delete_documents

            counts = delete_documents(live, names, progress.advance)
            path = f"{live.cluster.name}/{index}"
            job.summary = DeleteSummary(command="delete", path=path, index=live.index, **vars(counts))


class _Encoder:
    """Loads the model when the first document has to be encoded."""

    def __init__(self, recipe: Recipe, manifest: Manifest, live: "LiveIndex") -> None:
        if live.meta.version != manifest.digest:
            raise BundleError(
                f"{live.index} has version {live.meta.version[:12]} of {live.meta.bundle!r}; {recipe.output} is "
                f"version {manifest.digest[:12]} of {manifest.name!r}.",
                remedy="Push this bundle, or give the recipe of the one that the index was written from.",
            )
        self._of = recipe, manifest, live.most_impact
        self._loaded: LaterDocuments | None = None

    @property
    def cut(self) -> int:
        return 0 if self._loaded is None else self._loaded.cut

    def __call__(self, documents: Sequence[Document]) -> Sequence["Encoded"]:
        if self._loaded is None:
            try:
                from lightretriever.artifacts.pipeline.later import LaterDocuments
            except ModuleNotFoundError as error:
                raise MissingExtraError.of(error) from error
            self._loaded = LaterDocuments.open(*self._of)
        return self._loaded.encode(documents)


def _upsert(live: "LiveIndex", corpus: Corpus, manifest: Manifest, encoder: _Encoder) -> tuple["Upserted", int]:
    """Check the whole corpus, and write what differs."""
    from lightretriever.artifacts.cluster.upsert import upsert as upsert_documents
    from lightretriever.artifacts.live.documents import check_names

    total = corpus.count()
    for document in corpus:
        check_names(document, manifest.field_names)
    if live.meta.vocabulary != "tokens":
        start_jvm()  # splits texts into words
    with ProgressBar("upsert", total=total, unit="documents") as progress:
        return upsert_documents(live, corpus, encoder, progress.advance), total


@contextmanager
def _opened(to: str, user: str | None, ca_file: Path | None, alias: str) -> Iterator["LiveIndex"]:
    cluster = connected(to, user, ca_file)
    from lightretriever.artifacts.cluster.aliases import only_index, read_meta
    from lightretriever.artifacts.cluster.live import LiveIndex

    try:
        index = only_index(cluster, alias)
        yield LiveIndex(cluster, alias, index, read_meta(cluster, index))
    finally:
        cluster.close()


def _read_ids(file: Path) -> list[str]:
    """Read an id from each line. Raises CorpusError for what can't be one."""
    found = []
    for number, line in read_lines(file):
        try:
            found.append(check_id(read_text(line)))
        except ValueError as error:
            raise CorpusError(f"{file}, line {number}: {error}.", remedy="Mend the line.") from error
    if not found:
        raise CorpusError(f"{file}: there is no id in it.", remedy="Give a file with an id on each line.")
    return found
