"""The legs on an OpenSearch cluster, in an index that `lightretriever push` wrote.

An engine searches one index by its own name, never by the alias, so that all of an answer comes from the same documents
while the alias is switched. `EngineHolder` then opens another engine.
"""

from collections.abc import Collection
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import Final

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.aliases import only_index, read_meta
from lightretriever.artifacts.cluster.client import ClusterAddress, connect
from lightretriever.artifacts.cluster.schema import MAX_FOUND, IndexMeta, read_features
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.sparse.jvm import SEARCH_HEAP_MB, start_jvm
from lightretriever.service.backends.base import (
    NO_ORDINALS,
    DocumentFilter,
    EncodedQuery,
    Leg,
    LegResults,
    Ordinals,
    ScoredDocuments,
    Scores,
)
from lightretriever.service.backends.opensearch_legs import ClusterDocuments, ClusterLegs, result_of
from lightretriever.service.errors import SettingsError
from lightretriever.service.execution.executor import Executor, Outcome, split
from lightretriever.service.schemas import LegName
from lightretriever.service.settings import Settings

__all__ = ["CLUSTER_LANE", "ClusterBackends", "open_cluster"]

CLUSTER_LANE: Final = ClusterLegs.name
"""The lane for trips to the cluster."""

_OPEN_S: Final = 10.0


class ClusterLeg:
    """One leg of a `ClusterLegs`."""

    backend: Final = CLUSTER_LANE

    def __init__(self, group: ClusterLegs, name: LegName, documents: ClusterDocuments) -> None:
        self.name: LegName = name
        self._group = group
        self._documents = documents

    def search(
        self, query: EncodedQuery, count: int, allowed: DocumentFilter | None = None, deadline: float = inf
    ) -> ScoredDocuments:
        """Find the best `count` documents. TimeoutError at the `perf_counter` time `deadline`."""
        return result_of(self._group.search([self.name], query, count, allowed, deadline)[0][self.name])

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents; 0.0 in the sparse leg for a document that shares no term."""
        return self._group.scores(self.name, ordinals, query)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Return the share of each token or term, from the documents' vectors or impacts."""
        if self.name == "dense":
            return query.dense_shares(self.vectors(ordinals))
        features = [read_features(source) for source in self._documents.sources(ordinals, "impacts")]
        impacts = [[row.get(term, 0) for term in query.terms] for row in features]
        rows = np.array(impacts, np.int32).reshape(ordinals.size, -1)
        shares: npt.NDArray[np.float32] = (rows * query.weights).astype(np.float32)
        return shares

    def vectors(self, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Return the vectors of documents (m,) as the bundle has them, quantised or not: (m, D) float32."""
        rows = np.array(self._documents.sources(ordinals, "vector"), np.float32)
        return rows.reshape(-1, self._group.meta.dimension or 1)


class ClusterBackends:
    """Implements `Backends`: all legs are searched in one trip to the cluster, in the lane `opensearch`."""

    name: Final = CLUSTER_LANE
    spellings: Final = None
    splits_text = False

    def __init__(self, cluster: ClusterLegs, legs: Collection[LegName], executor: Executor) -> None:
        """`close` closes the connections."""
        self.cluster = cluster
        self.live = cluster.live
        self.documents = ClusterDocuments(cluster)
        self._by_name = {name: ClusterLeg(cluster, name, self.documents) for name in legs}
        self.legs: dict[LegName, Leg] = {**self._by_name}
        self._executor = executor

    def now(self) -> "ClusterBackends":
        """Return these: the cluster has the documents."""
        return self

    def search(
        self,
        query: EncodedQuery,
        legs: Collection[LegName],
        count: int,
        allowed: DocumentFilter | None,
        deadline: float,
    ) -> LegResults:
        """Search these legs until the `perf_counter` time `deadline`. Every leg gets an outcome."""
        trip = partial(self.cluster.search, list(legs), query, count, allowed, deadline)
        whole = self._executor.gather({CLUSTER_LANE: trip}, deadline)[CLUSTER_LANE]
        hits, named = (None, NO_ORDINALS) if whole.value is None else whole.value
        outcome = Outcome(hits, whole.reason, whole.error, whole.started, whole.ended, whole.handed_s)
        return LegResults(split(outcome, legs), query, named=named)

    def vectors(self, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Return the vectors of documents (m, D), as the bundle has them."""
        return self._by_name["dense"].vectors(ordinals)

    def within(self, deadline: float) -> AbstractContextManager[None]:
        """End by `deadline` what this thread asks of the documents in the block."""
        return self.cluster.within(deadline)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self.documents.close()


def open_cluster(bundle: Bundle, settings: Settings, executor: Executor) -> ClusterBackends:
    """Open the index that the settings name, and add a lane for trips to the executor.

    ClusterError if it can't be used, BundleError if it has another bundle, SettingsError if a cluster can't find
    `max_candidates`.
    """
    if settings.max_candidates > MAX_FOUND:
        raise SettingsError(
            f"Setting 'max_candidates' is {settings.max_candidates}; a cluster finds at most {MAX_FOUND}.",
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
            start_jvm(SEARCH_HEAP_MB)  # splits queries into words
    except BaseException:
        cluster.close()
        raise
    names: list[LegName] = ["sparse"] if bundle.manifest.dense is None else ["dense", "sparse"]
    executor.add(CLUSTER_LANE, settings.threads(), patience_s=deadline_s)
    return ClusterBackends(ClusterLegs(cluster, alias, index, meta, deadline_s), names, executor)


def _check(meta: IndexMeta, bundle: Bundle, alias: str, index: str) -> None:
    """Refuse an index of another bundle, or of another version of this one."""
    manifest = bundle.manifest
    if meta.version != manifest.digest:
        raise BundleError(
            f"{alias} is {index}, which has version {meta.version[:12]} of {meta.bundle!r}; {bundle.path} is version "
            f"{manifest.digest[:12]} of {manifest.name!r}.",
            remedy="Push this bundle, or serve the one that the index was written from.",
        )
    for name, actual, expected in (
        ("values in a vector", meta.dimension, None if manifest.dense is None else manifest.dimension),
        ("documents", meta.documents, manifest.documents),
    ):
        if actual != expected:
            raise BundleError(f"{index} has {actual} {name}, the bundle {expected}.", remedy="Push the bundle again.")
