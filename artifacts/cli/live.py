"""The commands `upsert` and `delete`: documents changed while they are searched, on one machine or on a cluster."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from lightretriever.artifacts.bundle.manifest import Manifest, read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cli.cluster import CaFileOption, MaybeIndexOption, MaybeToOption, UserOption, connected
from lightretriever.artifacts.cli.options import DeviceOption, LimitOption, SkipOption, WorkOption, overridden
from lightretriever.artifacts.cli.runner import JsonOption, report_skipped, running
from lightretriever.artifacts.corpus.beir import Corpus, read_ids
from lightretriever.artifacts.documents.document import Document
from lightretriever.artifacts.errors import BundleError, RecipeError, importing
from lightretriever.artifacts.live.documents import Encoded, LiveDocuments, Upserted, check_names
from lightretriever.artifacts.live.upsert import delete as delete_documents
from lightretriever.artifacts.live.upsert import upsert as upsert_documents
from lightretriever.artifacts.pipeline.encoded import EncodedCorpus
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.artifacts.summary import Summary, left_out

if TYPE_CHECKING:
    from lightretriever.artifacts.pipeline.later import LaterDocuments

LiveOption = Annotated[
    Path | None, typer.Option("--live", help="Folder of the journal, on one machine.", show_default=False)
]

__all__ = ["DeleteSummary", "UpsertSummary", "delete", "upsert"]


class UpsertSummary(Summary):
    """Of `upsert`: `path` is the journal's folder, and `index` the bundle's version; or the alias on the cluster, and
    its index. Of the documents, `unchanged` were there already, `fields` got other fields and kept their vectors, and
    the model read the `encoded`, of which `created` are new."""

    command: Literal["upsert"] = "upsert"
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
    """Of `delete`: `path` and `index` as in `UpsertSummary`, `missing` are ids that no document had."""

    command: Literal["delete"] = "delete"
    index: str
    deleted: int
    missing: int

    def made(self) -> Iterator[str]:
        """One line."""
        yield f"{self.path}: {self.deleted:,} documents deleted, {self.missing:,} were not there"


def upsert(
    context: typer.Context,
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
        loaded = overridden(context, Recipe)
        manifest = read_manifest(loaded.output)
        documents = Corpus(corpus, skip_bad=skip_bad, limit=limit, fields=manifest.fields)
        with _opened(live, loaded.output, to, user, ca_file, index) as place:
            _check_bundle(place, manifest)
            encoder = _Encoder(loaded, manifest, place.live.most_impact)
            counts, total = _upsert(place, documents, manifest, encoder)
            job.summary = UpsertSummary(
                path=place.path,
                index=place.index,
                documents=total,
                **vars(counts),
                skipped=documents.skipped.count,
                cut=encoder.cut,
            )
        report_skipped(documents.skipped, cut=encoder.cut)


def delete(
    ids: Annotated[Path, typer.Argument(help="File with the id of a document on each line.", show_default=False)],
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="The bundle of the journal; for --live.", show_default=False)
    ] = None,
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
            _opened(live, bundle, to, user, ca_file, index) as place,
            ProgressBar("delete", total=len(names), unit="ids") as progress,
        ):
            counts = delete_documents(place.live, names, progress.advance)
            job.summary = DeleteSummary(path=place.path, index=place.index, **vars(counts))


@dataclass(frozen=True)
class _Place:
    """Where documents are changed: a journal's folder or a cluster's alias, the index there, and the bundle that it is
    of, by version and name."""

    path: str
    index: str
    bundle: tuple[str, str]
    live: LiveDocuments


class _Encoder:
    """Loads the model when the first document has to be encoded."""

    def __init__(self, recipe: Recipe, manifest: Manifest, most_impact: int) -> None:
        self._of = recipe, manifest, most_impact
        self._loaded: LaterDocuments | None = None

    @property
    def cut(self) -> int:
        return 0 if self._loaded is None else self._loaded.cut

    def __call__(self, documents: Sequence[Document]) -> Sequence[Encoded]:
        if self._loaded is None:
            with importing("pipeline"):
                from lightretriever.artifacts.pipeline.later import LaterDocuments
            self._loaded = LaterDocuments.open(*self._of)
        return self._loaded.encode(documents)


def _upsert(place: _Place, corpus: Corpus, manifest: Manifest, encoder: _Encoder) -> tuple[Upserted, int]:
    """Check the whole corpus, and write what differs."""
    with TemporaryDirectory(prefix="upsert-", ignore_cleanup_errors=True) as folder:
        documents = EncodedCorpus.of(corpus, Path(folder))
        for fields in documents.facts["fields"]:
            check_names(fields, manifest.field_names)
        if manifest.sparse.vocabulary != "tokens":
            start_jvm()  # splits texts into words
        with ProgressBar("upsert", total=len(documents), unit="documents") as progress:
            return upsert_documents(place.live, documents, encoder, progress.advance), len(documents)


def _opened(
    live: Path | None, bundle: Path | None, to: str | None, user: str | None, ca_file: Path | None, index: str | None
) -> AbstractContextManager[_Place]:
    if live is not None and bundle is not None:
        return _journal(live, bundle)
    if live is None and to is not None and index is not None:
        return _on_cluster(to, user, ca_file, index)
    raise RecipeError("It is not said where to write.", remedy="Give --live and a bundle, or --to and --index.")


@contextmanager
def _journal(folder: Path, path: Path) -> Iterator[_Place]:
    from lightretriever.artifacts.live.store import LiveStore

    opened = Bundle.open(path)
    start_jvm()
    with opened.sparse() as sparse:
        manifest = opened.manifest
        with closing(LiveStore(folder, manifest, sparse, None if manifest.dense is None else opened.dense())) as store:
            yield _Place(str(folder), manifest.digest, (manifest.digest, manifest.name), store)


@contextmanager
def _on_cluster(to: str, user: str | None, ca_file: Path | None, alias: str) -> Iterator[_Place]:
    with closing(connected(to, user, ca_file)) as cluster:
        from lightretriever.artifacts.cluster.aliases import only_index, read_meta
        from lightretriever.artifacts.cluster.live import LiveIndex

        index = only_index(cluster, alias)
        meta = read_meta(cluster, index)
        live = LiveIndex(cluster, alias, index, meta)
        yield _Place(f"{cluster.name}/{alias}", index, (meta.version, meta.bundle), live)


def _check_bundle(place: _Place, manifest: Manifest) -> None:
    """Raise BundleError where the index at a place is not of the recipe's bundle."""
    version, name = place.bundle
    if version != manifest.digest:
        raise BundleError(
            f"{place.index} has version {version[:12]} of {name!r}; the recipe's bundle is version "
            f"{manifest.digest[:12]} of {manifest.name!r}.",
            remedy="Push this bundle, or give the recipe of the one that the index was written from.",
        )
