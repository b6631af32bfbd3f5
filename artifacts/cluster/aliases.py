"""Which index an alias stands for, and what that index holds."""

import re
from typing import Any, Final

from opensearchpy.exceptions import NotFoundError
from pydantic import ValidationError

from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.cluster.schema import IndexMeta
from lightretriever.artifacts.errors import ClusterError

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,199}")
_PUSH: Final = "Write it: `lightretriever push BUNDLE --to URL --index NAME`."


def check_name(alias: str) -> None:
    """Raise ClusterError for what can't be the name of an index."""
    if not _NAME.fullmatch(alias) or alias.startswith("."):
        raise ClusterError(
            f"{alias!r:.100} is no name of an index.",
            remedy="Use at most 200 of: lowercase letters, digits, dots, dashes, underscores; a letter or digit first.",
        )


def indexes_of(cluster: Cluster, alias: str) -> list[str]:
    """Name the indexes that an alias stands for. ClusterError if it is the name of an index itself."""
    check_name(alias)
    with cluster.translated():
        try:
            indexes = cluster.client.indices.get_alias(name=alias)
        except NotFoundError:
            indexes = {}
        taken = not indexes and cluster.client.indices.exists(index=alias)
    if taken:
        remedy = "Choose another name, or remove that index."
        raise ClusterError(f"{alias} is an index of {cluster.name}, not an alias of one.", remedy=remedy)
    return sorted(indexes)


def only_index(cluster: Cluster, alias: str) -> str:
    """Name the one index that an alias stands for. ClusterError if there is none or more."""
    indexes = indexes_of(cluster, alias)
    if len(indexes) != 1:
        what = f"the alias of {len(indexes)} indexes ({', '.join(indexes)})" if indexes else "no index"
        raise ClusterError(f"{alias} is {what} on {cluster.name}; it must be the alias of one.", remedy=_PUSH)
    return indexes[0]


def read_meta(cluster: Cluster, index: str) -> IndexMeta:
    """Read what an index was written from. ClusterError if it is not one of ours, or of another format."""
    return read_index(cluster, index)[0]


def read_index(cluster: Cluster, index: str, timeout_s: float | None = None) -> tuple[IndexMeta, str]:
    """Read what an index was written from, and its UUID, which no other index of its name has had, such as one restored
    from a snapshot. ClusterError as in `read_meta`."""
    limit = {} if timeout_s is None else {"request_timeout": timeout_s}
    with cluster.translated():
        description: dict[str, Any] = cluster.client.indices.get(index=index, **limit)[index]
    meta = description["mappings"].get("_meta")
    try:
        return IndexMeta.model_validate(meta), description["settings"]["index"]["uuid"]
    except ValidationError as error:
        what = "has no _meta of lightretriever" if not isinstance(meta, dict) else "is of another format"
        raise ClusterError(f"The index {index} of {cluster.name} {what}.", remedy=_PUSH) from error


def switch(cluster: Cluster, alias: str, index: str) -> list[str]:
    """Make an alias stand for this index alone, in one step, and name those that it stood for before."""
    before = [name for name in indexes_of(cluster, alias) if name != index]
    actions: list[dict[str, Any]] = [{"remove": {"index": name, "alias": alias}} for name in before]
    with cluster.translated():
        cluster.client.indices.update_aliases(body={"actions": [*actions, {"add": {"index": index, "alias": alias}}]})
    return before
