"""Where `upsert` and `delete` change documents: a journal on one machine, or a cluster."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cli.cluster import connected
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.live.documents import LiveDocuments
from lightretriever.artifacts.sparse.jvm import start_jvm

__all__ = ["LiveOption", "Place", "opened_place"]

LiveOption = Annotated[
    Path | None, typer.Option("--live", help="Folder of the journal, on one machine.", show_default=False)
]


@dataclass(frozen=True)
class Place:
    """Where documents are changed: a journal's folder or a cluster's alias, the index there, and the bundle that it is
    of, by version and name."""

    path: str
    index: str
    bundle: tuple[str, str]
    live: LiveDocuments


def opened_place(
    live: Path | None, bundle: Path | None, to: str | None, user: str | None, ca_file: Path | None, index: str | None
) -> AbstractContextManager[Place]:
    """The place that the options name. Raises RecipeError where they name none, and what opening it raises."""
    if live is not None and bundle is not None:
        return _journal(live, bundle)
    if live is None and to is not None and index is not None:
        return _on_cluster(to, user, ca_file, index)
    raise RecipeError("It is not said where to write.", remedy="Give --live and a bundle, or --to and --index.")


@contextmanager
def _journal(folder: Path, path: Path) -> Iterator[Place]:
    from lightretriever.artifacts.live.store import LiveStore

    opened = Bundle.open(path)
    start_jvm()
    with opened.sparse() as sparse:
        manifest = opened.manifest
        with closing(LiveStore(folder, manifest, sparse, None if manifest.dense is None else opened.dense())) as store:
            yield Place(str(folder), manifest.digest, (manifest.digest, manifest.name), store)


@contextmanager
def _on_cluster(to: str, user: str | None, ca_file: Path | None, alias: str) -> Iterator[Place]:
    with closing(connected(to, user, ca_file)) as cluster:
        from lightretriever.artifacts.cluster.aliases import only_index, read_meta
        from lightretriever.artifacts.cluster.live import LiveIndex

        index = only_index(cluster, alias)
        meta = read_meta(cluster, index)
        live = LiveIndex(cluster, alias, index, meta)
        yield Place(f"{cluster.name}/{alias}", index, (meta.version, meta.bundle), live)
