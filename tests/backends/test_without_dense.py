"""A bundle without a dense leg: written, verified, and pushed to a cluster. tests/service/test_answers.py serves it."""

import os
from pathlib import Path
from time import perf_counter
from typing import get_args

import orjson
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.cluster.client import read_meta
from lightretriever.artifacts.cluster.live import LiveIndex
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.documents.document import read_document
from lightretriever.artifacts.errors import BundleError, UnencodedError
from lightretriever.artifacts.live.documents import Change, Encoded, upsert
from lightretriever.artifacts.sparse.vocabulary import VocabularyKind
from lightretriever.service.errors import InvalidRequestError
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import warm
from tests.support.cluster import connected, remove_indexes
from tests.support.tampering import copy_of, edit_manifest
from tests.support.tiny import BundleOf
from tests.support.wordings import raises

NAME = f"alone-{os.getpid()}"
SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=3)


@pytest.fixture(scope="module", params=get_args(VocabularyKind))
def bundle(request: pytest.FixtureRequest, bundle_of: BundleOf) -> Bundle:
    return bundle_of(request.param, dense=False)


def test_it_has_neither_vectors_nor_tables(bundle: Bundle, tmp_path: Path) -> None:
    assert verify_bundle(bundle.path) == []
    names = {file.split("/")[0] for file in bundle.manifest.files}
    assert names == {"tokenizer.json", "lucene"}
    assert bundle.manifest.dense is None
    assert {(task.file, task.dtype) for task in bundle.manifest.tasks.values()} == {(None, None)}
    for call in (bundle.dense, lambda: bundle.table("default")):
        with raises(BundleError):
            call()
    bundle = Bundle.open(copy_of(bundle.path, tmp_path))
    edit_manifest(bundle.path, lambda record: record["tasks"]["default"].update(file="tables/a.npy", dtype="float32"))
    with raises(BundleError):
        Bundle.open(bundle.path)


def test_a_cluster_has_no_vectors(bundle: Bundle, opensearch: str) -> None:
    """And answers as Lucene does. Documents that come later need impacts alone."""
    with connected(opensearch) as cluster, warm(bundle, SETTINGS) as engine:
        try:
            index_name = push(bundle, cluster, NAME, shards=2, replicas=0).facts["index"]
            meta = read_meta(cluster, index_name)
            assert meta.dimension is None
            mapping = cluster.client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
            assert "vector" not in mapping
            there = {"opensearch_url": opensearch, "opensearch_index": NAME}
            with SearchEngine.open(bundle, SETTINGS.model_copy(update=there)) as remote:
                for more in ({}, {"mode": "sparse"}, {"filter": {"field": "year", "gte": 2010}}):
                    asked = SearchRequest.model_validate({"query": "play music files", "k": 20, **more})
                    one, other = ([(hit.id, hit.score) for hit in each.search(asked).hits] for each in (remote, engine))
                    assert one == other
                with raises(InvalidRequestError, naming="index.dense"):
                    remote.search(SearchRequest(query="play music files", mode="dense"))
            index, until = LiveIndex(cluster, NAME, index_name, meta), perf_counter() + 1e6
            with bundle.sparse() as sparse:
                term = sparse.terms(0)[0][0]
            records = [{"_id": f"new-{number}", "title": "Zebra", "text": f"A zebra {number}."} for number in range(4)]
            *new, last = (read_document(orjson.dumps(record), {}, set()) for record in records)
            upserted = upsert(index, new, lambda some: [Encoded(None, {term: 3}) for _ in some], int)
            assert (upserted.created, upserted.encoded) == (3, 3)
            assert upsert(index, new, lambda _: pytest.fail("nothing is to be encoded"), int).unchanged == 3
            stored = index.get("new-1", until)
            assert stored is not None
            assert "vector" not in stored.source
            index.write([Change("new-1", new[1], impacts={term: 5})], until)
            index.write([Change("new-1", new[1])], until)  # keeps its impacts
            stored = index.get("new-1", until)
            assert stored is not None
            assert stored.source["impacts"] == {term: 5}
            (refused,) = index.write([Change(last.id, last)], until)
            assert isinstance(refused, UnencodedError)
            assert "impacts: is missing, but the document is new" in str(refused)
        finally:
            remove_indexes(opensearch, NAME)
