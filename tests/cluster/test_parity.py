"""A part of the demo corpus on this machine and on a cluster: 100 queries, the first words of as many documents."""

import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from lightretriever.artifacts.bundle.archive import unpack
from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.bundle.manifest import LiveInfo
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.live.compact import write_again
from lightretriever.artifacts.sparse.writer import numbered
from lightretriever.service.commands.demo import ARCHIVE
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LegName, SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.cluster import served_by

NAME = f"parity-{os.getpid()}"
DOCUMENTS = 1000
QUERIES = 100
FOUND = 100


def first_documents(whole: Bundle, path: Path) -> Bundle:
    """Write a bundle of the first documents of another one, whose vectors, impacts and table it keeps."""
    ordinals = np.arange(DOCUMENTS)
    with whole.sparse() as sparse:
        indptr, terms, impacts, names = numbered(sparse.rows(0, DOCUMENTS))
        ids, documents = sparse.ids()[:DOCUMENTS], sparse.documents(ordinals)
    batch = EncodedBatch(ids, documents, whole.dense().vectors(ordinals), indptr, terms, impacts, names)
    return write_again(whole, iter([batch]), path, LiveInfo(journal="none", position=0))


@pytest.fixture(scope="module")
def engines(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SearchEngine, SearchEngine]]:
    folder = tmp_path_factory.mktemp("demo")
    unpack(ARCHIVE, folder / "whole")
    bundle = first_documents(Bundle.open(folder / "whole"), folder / "bundle")
    push(bundle, cluster, NAME, replicas=0, skipped=int, written=int)
    with (
        SearchEngine.open(bundle, Settings(deadline_ms=60_000)) as local,
        SearchEngine.open(bundle, served_by(cluster, NAME)) as remote,
    ):
        yield local, remote


@pytest.fixture(scope="module")
def queries(engines: tuple[SearchEngine, SearchEngine]) -> dict[str, str]:
    """The id of a document by its first words."""
    documents, count = engines[0].parts.documents, engines[0].bundle.manifest.documents
    ids = documents.fetch(np.linspace(0, count - 1, QUERIES).astype(np.int64), [])
    return dict(zip(documents.probes(QUERIES), (name for name, _ in ids), strict=True))


def test_every_leg_finds_the_same(engines: tuple[SearchEngine, SearchEngine], queries: dict[str, str]) -> None:
    local, remote = engines
    legs: list[LegName] = ["dense", "sparse"]
    recall = []
    for text in queries:
        query = local.parts.encoder.encode(text, local.bundle.manifest.default_task, StageClock())
        there = remote.parts.backends.search(query, legs, FOUND, None, perf_counter() + 60).outcomes
        here = local.parts.backends.search(query, legs, FOUND, None, perf_counter() + 60).outcomes
        (dense, sparse), (dense_here, sparse_here) = ([by[name].value for name in legs] for by in (there, here))
        assert sparse is not None
        assert sparse_here is not None
        assert sparse.ordinals.tolist() == sparse_here.ordinals.tolist()
        assert sparse.scores.tolist() == sparse_here.scores.tolist()
        assert dense is not None
        assert dense_here is not None
        recall.append(len(np.intersect1d(dense.ordinals, dense_here.ordinals)) / FOUND)
        assert dense.scores == pytest.approx(local.parts.backends.legs["dense"].scores(query, dense.ordinals), abs=1e-5)
    assert np.mean(recall) >= 0.99  # the bundle's own index is exact


def test_hits_match_as_well_there(engines: tuple[SearchEngine, SearchEngine]) -> None:
    local, remote = engines
    seen = set()
    for query in ("play music", "play music from the terminal", "edit photos", "qqqq"):
        request = SearchRequest(query=query, fields=[], k=20)
        here, there = local.search(request), remote.search(request)
        assert there.matched == here.matched
        common = {hit.id: hit.matched for hit in here.hits}
        same = [hit.matched == common[hit.id] for hit in there.hits if hit.id in common]
        assert sum(same) >= 0.9 * max(len(here.hits), len(there.hits))
        seen.add(there.matched)
    assert {"strong", "none"} <= seen
