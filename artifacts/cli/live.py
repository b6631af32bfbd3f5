"""Where documents are written: by `push`, `upsert` and `delete` to an OpenSearch cluster, by the last two also to a
journal on one machine."""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import RecipeError, importing
from lightretriever.artifacts.live.documents import LiveDocuments
from lightretriever.artifacts.sparse.jvm import start_jvm

if TYPE_CHECKING:
    from lightretriever.artifacts.cluster.client import Cluster

_TIMEOUT_S = 120.0
_PREFIX = "LIGHTRETRIEVER_OPENSEARCH_"  # the variables of the service's settings

_TO = typer.Option("--to", envvar=f"{_PREFIX}URL", help="Addresses of the cluster's nodes, by comma.")
_INDEX = typer.Option("--index", envvar=f"{_PREFIX}INDEX", help="Alias of the index.")
ToOption = Annotated[str, _TO]
MaybeToOption = Annotated[str | None, _TO]
IndexOption = Annotated[str, _INDEX]
MaybeIndexOption = Annotated[str | None, _INDEX]
UserOption = Annotated[str | None, typer.Option("--user", envvar=f"{_PREFIX}USER", help="Name of the user.")]
CaFileOption = Annotated[
    Path | None, typer.Option("--ca-file", envvar=f"{_PREFIX}CA_FILE", help="Authority of the certificates (PEM).")
]


def connected(urls: str, user: str | None, ca_file: Path | None) -> "Cluster":
    """Connect with the secrets of the environment, because options would show them to all users of the machine. Raises
    ClusterError, and MissingExtraError."""
    with importing("cluster"):
        from lightretriever.artifacts.cluster.client import ClusterAddress, connect
    password, api_key = (os.environ.get(_PREFIX + name) for name in ("PASSWORD", "API_KEY"))
    return connect(ClusterAddress(urls, user, password, api_key, ca_file), timeout_s=_TIMEOUT_S, retry_late=True)


LiveOption = Annotated[
    Path | None, typer.Option("--live", help="Folder of the journal, on one machine.", show_default=False)
]


@dataclass(frozen=True)
class Target:
    """Where documents are changed: a journal's folder or a cluster's alias, the index there, and the bundle that it is
    of, by version and name."""

    path: str
    index: str
    bundle: tuple[str, str]
    live: LiveDocuments


def opened_target(
    live: Path | None, bundle: Path | None, to: str | None, user: str | None, ca_file: Path | None, index: str | None
) -> AbstractContextManager[Target]:
    """The place that the options name. Raises RecipeError where they name none, and what opening it raises."""
    if live is not None and bundle is not None:
        return _journal(live, bundle)
    if live is None and to is not None and index is not None:
        return _on_cluster(to, user, ca_file, index)
    raise RecipeError("It is not said where to write.", remedy="Give --live and a bundle, or --to and --index.")


@contextmanager
def _journal(folder: Path, path: Path) -> Iterator[Target]:
    from lightretriever.artifacts.live.store import LiveStore

    opened = Bundle.open(path)
    start_jvm()
    with opened.sparse() as sparse:
        manifest = opened.manifest
        with closing(LiveStore(folder, manifest, sparse, None if manifest.dense is None else opened.dense())) as store:
            yield Target(str(folder), manifest.digest, (manifest.digest, manifest.name), store)


@contextmanager
def _on_cluster(to: str, user: str | None, ca_file: Path | None, alias: str) -> Iterator[Target]:
    with closing(connected(to, user, ca_file)) as cluster:
        from lightretriever.artifacts.cluster.aliases import only_index, read_meta
        from lightretriever.artifacts.cluster.live import LiveIndex

        index = only_index(cluster, alias)
        meta = read_meta(cluster, index)
        live = LiveIndex(cluster, alias, index, meta)
        yield Target(f"{cluster.name}/{alias}", index, (meta.version, meta.bundle), live)
