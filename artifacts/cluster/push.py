"""Writing a bundle to a cluster: into a new index, which takes the alias when it is whole and gives the same scores.

A push that was stopped, however, goes on where it was: its index is found by name, and documents that it has are not
written again.
"""

from collections.abc import Iterator
from itertools import repeat
from typing import Any, Final

import numpy as np
import orjson

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.client import Cluster, check_name, indexes_of, read_meta, refusal, send, switch
from lightretriever.artifacts.cluster.schema import (
    MAX_CLUSTER_DIMENSION,
    MAX_PLAIN_IMPACT,
    IndexMeta,
    dense_search,
    document_body,
    features,
    index_body,
    index_name,
    of_ordinals,
    read_hits,
    sparse_search,
)
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.dtypes import Float32Array, Int64Array
from lightretriever.artifacts.errors import ClusterError
from lightretriever.artifacts.reports import ProgressBar, Summary
from lightretriever.artifacts.signals import commit_point
from lightretriever.artifacts.sparse.index import ImpactIndex

_READ: Final = 8192  # documents that are read from the bundle together, since each time asks Lucene every term
_CHECKED: Final = 1024  # documents that are counted together, to find those that are there
_AGAIN: Final = "Run the same command again: it writes what is missing."

# The sample by which scores of the cluster are compared with the bundle's.
_DOCUMENTS: Final = 100
_QUERIES: Final = 5
_TERMS: Final = 500  # of a query for the sparse leg; a cluster takes 1,024 clauses, and a large impact needs two
_ERROR: Final = 1e-5  # of a score, as a share of the query's best


def push(
    bundle: Bundle,
    cluster: Cluster,
    alias: str,
    *,
    shards: int = 1,
    replicas: int = 1,
    delete_old: bool = False,
) -> Summary:
    """Write a bundle and let `alias` stand for it. Checks that every document is there, and that a sample gets the
    bundle's scores, before the alias is switched. Raises ClusterError, BundleError and JavaError."""
    manifest = bundle.manifest
    check_name(alias)
    changed = _changed(cluster, indexes_of(cluster, alias))
    if delete_old and changed:
        raise ClusterError(
            f"In {changed[0]} of {cluster.name}, documents were written or deleted since its bundle was pushed; "
            "--delete-old would remove what this bundle lacks.",
            remedy="Push without it, run `lightretriever upsert` with those documents, and then remove that index.",
        )
    if manifest.dense is not None and manifest.dimension > MAX_CLUSTER_DIMENSION:
        raise ClusterError(
            f"The bundle's vectors have {manifest.dimension} values; a cluster takes {MAX_CLUSTER_DIMENSION}.",
            remedy="Build it with a smaller index.dimension.",
        )
    dense = None if manifest.dense is None else bundle.dense()
    with bundle.sparse() as sparse:
        read = (sparse.rows(first, min(first + _READ, sparse.count)) for first in range(0, sparse.count, _READ))
        large = any(impact > MAX_PLAIN_IMPACT for rows in read for row in rows for impact in row.values())
        meta = IndexMeta.of(manifest, large=large)
        index = index_name(alias, manifest, shards)
        _create(cluster, index, meta, shards=shards, replicas=replicas)
        present = _write(cluster, index, meta, dense, sparse)
        with cluster.translated():  # and let searches see them
            cluster.client.indices.put_settings(index=index, body={"index": {"refresh_interval": None}})
            cluster.client.indices.refresh(index=index)
            count = int(cluster.client.count(index=index)["count"])
        if count != manifest.documents:
            what = f"The index {index} has {count:,} documents of {manifest.documents:,}."
            raise ClusterError(what, remedy=_AGAIN)
        check_scores(cluster, index, meta, dense, sparse)
    commit_point()
    before = switch(cluster, alias, index)
    changed = _changed(cluster, before)  # again, because the push took its time
    removed = delete_old and not changed
    if removed and before:
        with cluster.translated():
            cluster.client.indices.delete(index=",".join(before))
    path, earlier = f"{cluster.name}/{alias}", f", {present:,} of them by an earlier run" if present else ""
    lines = [f"{path}: {manifest.documents:,} documents in {index}{earlier}; counts and a sample of scores agree"]
    if before:
        kept = "kept" if changed else "kept; --delete-old removes it"
        lines += [f"before: {', '.join(before)}, {'removed' if removed else kept}"]
    written_there = "had documents written or deleted: bring them here by `lightretriever upsert` and `delete`"
    lines += [f"{name} {written_there}" for name in changed]
    facts = {"index": index, "version": manifest.digest, "documents": manifest.documents, "found": present}
    facts |= {"before": before, "removed": removed, "changed": changed, "query_bundle": None}
    return Summary(path, lines, facts)


def _changed(cluster: Cluster, indexes: list[str]) -> list[str]:
    """Name those in which documents were written or deleted since their push."""
    return [index for index in indexes if read_meta(cluster, index).live]


def _create(cluster: Cluster, index: str, meta: IndexMeta, *, shards: int, replicas: int) -> None:
    """Create the index, unless an earlier run did."""
    with cluster.translated():
        if not cluster.client.indices.exists(index=index):
            cluster.client.indices.create(index=index, body=index_body(meta, shards=shards, replicas=replicas))
            return
    there = read_meta(cluster, index)
    if there.live:
        raise ClusterError(
            f"In {index} of {cluster.name}, documents were written or deleted since this bundle was pushed; pushing it "
            "again would undo that.",
            remedy="Build a bundle of the corpus as it is now. Or remove the index, and push again.",
        )
    if there != meta:
        raise ClusterError(f"The index {index} of {cluster.name} was changed.", remedy="Remove it, and push again.")
    with cluster.translated():
        cluster.client.indices.put_settings(index=index, body={"index": {"number_of_replicas": replicas}})


def _write(cluster: Cluster, index: str, meta: IndexMeta, dense: DenseIndex | None, sparse: ImpactIndex) -> int:
    """Write the documents that the index lacks, and return the number of the others."""
    present = 0
    with cluster.translated(), ProgressBar("push", total=sparse.count, unit="documents") as progress:
        cluster.client.indices.refresh(index=index)
        for first in range(0, sparse.count, _READ):
            end = min(first + _READ, sparse.count)
            parts = [range(start, min(start + _CHECKED, end)) for start in range(first, end, _CHECKED)]
            missing = [ordinal for part in parts if _count(cluster, index, part) < len(part) for ordinal in part]
            there = end - first - len(missing)
            progress.skip(there)
            present += there
            if not missing:
                continue
            rows = sparse.rows(first, end)
            actions = _actions(meta, dense, sparse, np.array(missing), [rows[ordinal - first] for ordinal in missing])
            for item in send(cluster, index, actions):
                if (error := refusal(cluster, item)) is not None:
                    raise ClusterError(error.message, remedy=f"{error.remedy} {_AGAIN}") from error
                progress.advance(1)
    return present


def _count(cluster: Cluster, index: str, ordinals: range) -> int:
    query = {"range": {"ordinal": {"gte": ordinals.start, "lt": ordinals.stop}}}
    return int(cluster.client.count(index=index, body={"query": query})["count"])


def _actions(
    meta: IndexMeta, dense: DenseIndex | None, sparse: ImpactIndex, ordinals: Int64Array, rows: list[dict[str, int]]
) -> Iterator[dict[str, Any]]:
    """Read documents (m,) from the bundle, whose impacts are `rows`, as the cluster gets them."""
    vectors = repeat(None) if dense is None else dense.vectors(ordinals)
    documents = sparse.documents(ordinals)
    for ordinal, raw, vector, impacts in zip(ordinals.tolist(), documents, vectors, rows, strict=False):
        body = document_body(ordinal, raw, vector, features(impacts), meta.fields)
        yield {"_op_type": "index", "_id": orjson.loads(raw)["_id"], "_source": body}


def check_scores(cluster: Cluster, index: str, meta: IndexMeta, dense: DenseIndex | None, sparse: ImpactIndex) -> None:
    """Score a sample of documents for some of them as queries, in every leg. ClusterError if a score differs by more
    than 1e-5 of the best one. Of a document with more than 500 terms, the query has 500, spread over all."""
    ordinals = sparse.spread(_DOCUMENTS)
    allowed, count = of_ordinals(ordinals), ordinals.size

    def compare(leg: str, search: dict[str, Any], expected: Float32Array) -> None:
        whole = {"allow_partial_search_results": "false"}
        with cluster.translated():
            answer = cluster.client.search(index=index, body=search, params=whole)
        scores = dict(zip(*(part.tolist() for part in read_hits(leg, answer)), strict=True))
        for ordinal, score in zip(ordinals.tolist(), expected.tolist(), strict=True):
            if abs(scores.get(ordinal, np.inf) - score) > _ERROR * max(1.0, float(expected.max())):
                what = f"scores {scores[ordinal]:g}" if ordinal in scores else "is not found"
                raise ClusterError(
                    f"In the {leg} leg, document {ordinal} {what} in {index}, and scores {score:g} in the bundle.",
                    remedy="The index was changed, or the cluster loses precision: remove it, and push again.",
                )

    for query in ordinals[:: max(1, ordinals.size // _QUERIES)].tolist():
        if dense is not None:
            vector = dense.vectors(np.array([query]))[0]
            compare("dense", dense_search(vector, count, allowed), dense.scores(vector, ordinals))
        every, _ = sparse.terms(query)
        places = np.unique(np.linspace(0, len(every) - 1, min(_TERMS, len(every))).astype(np.int64))
        terms = [every[place] for place in places.tolist()]
        weights = np.ones(len(terms), np.float32)
        search = sparse_search(terms, weights, count, allowed, large=meta.large, every=True)
        compare("sparse", search, sparse.scores(terms, weights, ordinals))
