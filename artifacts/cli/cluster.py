"""The options of the commands that write to an OpenSearch cluster, and their connection."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lightretriever.artifacts.errors import importing

if TYPE_CHECKING:
    from lightretriever.artifacts.cluster.client import Cluster

__all__ = ["CaFileOption", "IndexOption", "MaybeIndexOption", "MaybeToOption", "ToOption", "UserOption", "connected"]

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
