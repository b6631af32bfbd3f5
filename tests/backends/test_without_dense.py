"""A bundle without a dense leg: written, verified, and pushed to a cluster. tests/service/test_answers.py serves it."""

import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

import orjson
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.cluster.client import read_meta
from lightretriever.artifacts.cluster.live import LiveIndex
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.documents.document import Document, read_document
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
QUERY = "play music files from the terminal"
SETTINGS = Settings(deadline_ms=60_000, warm_up_queries=3)


@pytest.fixture(scope="module", params=get_args(VocabularyKind))
def bundle(request: pytest.FixtureRequest, bundle_of: BundleOf) -> Bundle:
    return bundle_of(request.param, dense=False)


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Iterator[SearchEngine]:
    with warm(bundle, SETTINGS) as engine:
        yield engine


def asked(**request: Any) -> SearchRequest:
    return SearchRequest.model_validate({"query": QUERY, "k": 20, **request})


def ids(found: Any) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in found.hits]


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


def document(number: int) -> Document:
    record = {"_id": f"new-{number}", "title": "Zebra", "text": f"A zebra plays the xylophone {number}.", "year": 2026}
    return read_document(orjson.dumps(record), {"year": "number"}, set())


def test_a_cluster_has_no_vectors(bundle: Bundle, engine: SearchEngine, opensearch: str) -> None:
    """And answers as Lucene does. Documents that come later need impacts alone."""
    with connected(opensearch) as cluster:
        try:
            index_name = push(bundle, cluster, NAME, shards=2, replicas=0).facts["index"]
            again = push(bundle, cluster, NAME, shards=2, replicas=0)
            assert again.facts["found"] == 120
            meta = read_meta(cluster, index_name)
            assert meta.dimension is None
            mapping = cluster.client.indices.get_mapping(index=index_name)[index_name]["mappings"]["properties"]
            assert "vector" not in mapping
            there = {"opensearch_url": opensearch, "opensearch_index": NAME}
            with SearchEngine.open(bundle, SETTINGS.model_copy(update=there)) as remote:
                for request in (asked(), asked(mode="sparse"), asked(filter={"field": "year", "gte": 2010})):
                    assert ids(remote.search(request)) == ids(engine.search(request))
                with raises(InvalidRequestError, naming="index.dense"):
                    remote.search(asked(mode="dense"))
            index = LiveIndex(cluster, NAME, index_name, meta)
            term = index_term(bundle)
            new = [document(number) for number in range(3)]
            upserted = upsert(index, new, lambda some: [Encoded(None, {term: 3}) for _ in some], int)
            assert (upserted.created, upserted.encoded) == (3, 3)
            assert upsert(index, new, refuse, int).unchanged == 3
            stored = index.get("new-1", until())
            assert stored is not None
            assert "vector" not in stored.source
            index.write([Change("new-1", new[1], impacts={term: 5})], until())
            index.write([Change("new-1", new[1])], until())  # keeps its impacts
            stored = index.get("new-1", until())
            assert stored is not None
            assert stored.source["impacts"] == {term: 5}
            (refused,) = index.write([Change("new-9", document(9))], until())
            assert isinstance(refused, UnencodedError)
            assert "impacts: is missing, but the document is new" in str(refused)
        finally:
            remove_indexes(opensearch, NAME)


def until() -> float:
    return perf_counter() + 60


def refuse(_: Any) -> Any:
    raise AssertionError("nothing is to be encoded")


def index_term(bundle: Bundle) -> str:
    """A term of the bundle."""
    with bundle.sparse() as index:
        return index.terms(0)[0][0]
