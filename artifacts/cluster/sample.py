"""Comparing the scores of a cluster with those of the bundle that was written to it, on a sample."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.cluster.queries import dense_search, of_ordinals, read_hits, sparse_search
from lightretriever.artifacts.cluster.schema import IndexMeta
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.errors import ClusterError
from lightretriever.artifacts.sparse.index import ImpactIndex

__all__ = ["check_scores"]

_DOCUMENTS: Final = 100
_QUERIES: Final = 5
_TERMS: Final = 500  # of a query for the sparse leg; a cluster takes 1,024 clauses, and a large impact needs two
_ERROR: Final = 1e-5  # of a score, as a share of the query's best


def check_scores(cluster: Cluster, index: str, meta: IndexMeta, dense: DenseIndex | None, sparse: ImpactIndex) -> None:
    """Score a sample of documents for some of them as queries, in every leg. ClusterError if a score differs by more
    than 1e-5 of the best one. Of a document with more than 500 terms, the query has 500, spread over all."""
    ordinals = sparse.spread(_DOCUMENTS)
    among, count = of_ordinals(ordinals), ordinals.size
    for ordinal in ordinals[:: max(1, ordinals.size // _QUERIES)].tolist():
        if dense is not None:
            vector = dense.vectors(np.array([ordinal]))[0]
            search = dense_search(vector, count, among)
            _compare(cluster, index, "dense", search, ordinals, dense.scores(vector, ordinals))
        terms = _spread(sparse.terms(ordinal)[0])
        weights = np.ones(len(terms), np.float32)
        search = sparse_search(terms, weights, count, among, large=meta.large, every=True)
        _compare(cluster, index, "sparse", search, ordinals, sparse.scores(terms, weights, ordinals))


def _spread(terms: Sequence[str]) -> list[str]:
    places = np.unique(np.linspace(0, len(terms) - 1, min(_TERMS, len(terms))).astype(np.int64))
    return [terms[place] for place in places.tolist()]


def _compare(
    cluster: Cluster,
    index: str,
    leg: str,
    search: dict[str, Any],
    ordinals: npt.NDArray[np.int64],
    expected: npt.NDArray[np.float32],
) -> None:
    with cluster.translated():
        whole = {"allow_partial_search_results": "false"}
        answer = cluster.client.search(index=index, body=search, params=whole)
    found = dict(zip(*(part.tolist() for part in read_hits(leg, answer)), strict=True))
    for ordinal, score in zip(ordinals.tolist(), expected.tolist(), strict=True):
        if abs(found.get(ordinal, np.inf) - score) > _ERROR * max(1.0, float(expected.max())):
            what = f"scores {found[ordinal]:g}" if ordinal in found else "is not found"
            raise ClusterError(
                f"In the {leg} leg, document {ordinal} {what} in {index}, and scores {score:g} in the bundle.",
                remedy="The index was changed, or the cluster's engine loses precision: remove it, and push again.",
            )
