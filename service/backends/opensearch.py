"""The legs on an OpenSearch cluster, in an index that `lightretriever push` wrote.

An engine searches one index by its own name, never by the alias, so that all of an answer comes from the same documents
while the alias is switched. `EngineHolder` then opens another engine.
"""

from typing import Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.aliases import only_index, read_meta
from lightretriever.artifacts.cluster.client import ClusterAddress, connect
from lightretriever.artifacts.cluster.schema import MOST_FOUND, IndexMeta
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.sparse.jvm import start_jvm_to_search
from lightretriever.service.backends.base import Backends
from lightretriever.service.backends.opensearch_documents import ClusterDocuments
from lightretriever.service.backends.opensearch_legs import ClusterLeg, ClusterLegs
from lightretriever.service.errors import SettingsError
from lightretriever.service.schemas import LegName
from lightretriever.service.settings import Settings

__all__ = ["open_cluster"]

_OPEN_S: Final = 10.0


def open_cluster(bundle: Bundle, settings: Settings) -> Backends:
    """Open the index that the settings name. ClusterError if it can't be used, BundleError if it has another bundle,
    SettingsError if a cluster can't find `max_candidates`."""
    if settings.max_candidates > MOST_FOUND:
        raise SettingsError(
            f"Setting 'max_candidates' is {settings.max_candidates}; a cluster finds at most {MOST_FOUND}.",
            remedy="Lower max_candidates.",
        )
    alias = settings.opensearch_index or ""
    address = ClusterAddress(
        settings.opensearch_url or "",
        settings.opensearch_user,
        settings.opensearch_password,
        settings.opensearch_api_key,
        settings.opensearch_ca_file,
    )
    deadline_s = settings.deadline_ms / 1e3
    cluster = connect(
        address, timeout_s=_OPEN_S, connections=settings.threads(), patience_s=min(_OPEN_S, deadline_s / 2)
    )
    try:
        index = only_index(cluster, alias)
        meta = read_meta(cluster, index)
        _check(meta, bundle, alias, index)
        if meta.vocabulary != "tokens":
            start_jvm_to_search()  # splits queries into words
    except BaseException:
        cluster.close()
        raise
    group = ClusterLegs(cluster, alias, index, meta, deadline_s)
    documents = ClusterDocuments(group)
    names: list[LegName] = ["sparse"] if bundle.manifest.dense is None else ["dense", "sparse"]
    return Backends({name: ClusterLeg(group, name, documents) for name in names}, documents, group)


def _check(meta: IndexMeta, bundle: Bundle, alias: str, index: str) -> None:
    """Refuse an index of another bundle, or of another version of this one."""
    manifest = bundle.manifest
    if meta.version != manifest.digest:
        raise BundleError(
            f"{alias} is {index}, which has version {meta.version[:12]} of {meta.bundle!r}; {bundle.path} is version "
            f"{manifest.digest[:12]} of {manifest.name!r}.",
            remedy="Push this bundle, or serve the one that the index was written from.",
        )
    for name, found, expected in (
        ("values in a vector", meta.dimension, None if manifest.dense is None else manifest.dimension),
        ("documents", meta.documents, manifest.documents),
    ):
        if found != expected:
            raise BundleError(f"{index} has {found} {name}, the bundle {expected}.", remedy="Push the bundle again.")
