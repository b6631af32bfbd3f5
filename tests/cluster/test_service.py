"""A service whose legs and documents are on a real cluster gives the answers of one with its own indexes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx2
import numpy as np
import pytest

from lightretriever.artifacts.bundle.batches import EncodedBatch
from lightretriever.artifacts.bundle.manifest import LiveInfo
from lightretriever.artifacts.bundle.reader import Bundle, unpack
from lightretriever.artifacts.bundle.writer import write_query_bundle
from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.artifacts.live.compact import write_again
from lightretriever.artifacts.sparse.writer import numbered
from lightretriever.service.collections.collections import EngineHolder
from lightretriever.service.commands.serve import ARCHIVE
from lightretriever.service.errors import (
    BundleRefusedError,
    DeadlineError,
    InvalidRequestError,
    NotReadyError,
    SearchFailedError,
)
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.service.live import live, warm
from tests.service.process import ROOT
from tests.support.asking import agree, without_times
from tests.support.cluster import Proxy, proxied, served_by
from tests.support.tiny import make_tiny_bundle, tiny_documents
from tests.support.waiting import wait_until
from tests.support.wordings import raises

NAME = f"service-{os.getpid()}"
FIELDS: dict[str, FieldKind] = {"year": "number", "tag.one": "keyword", "day": "date"}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Its documents have a keyword and a date, some before 1970."""
    documents = [
        replace(one, more={"tag.one": [f"t{one.year % 3}", "é"], "day": f"{one.year - 40}-05-31"})
        for one in tiny_documents()
    ]
    return make_tiny_bundle(
        tmp_path_factory.mktemp("cluster") / "tiny", documents=documents, vocabulary="tokens", idf=True, fields=FIELDS
    )


@pytest.fixture(scope="module")
def settings(bundle: Bundle, cluster: Cluster) -> Settings:
    push(bundle, cluster, NAME, shards=2, replicas=0)
    return served_by(cluster, NAME, warm_up_queries=3, watch_s=0.2)


@pytest.fixture(scope="module")
def engine(bundle: Bundle, settings: Settings) -> Iterator[SearchEngine]:
    with warm(bundle, settings) as engine:
        yield engine


@pytest.fixture(scope="module")
def local(bundle: Bundle) -> Iterator[SearchEngine]:
    with SearchEngine.open(bundle, Settings(deadline_ms=60_000)) as engine:
        yield engine


@pytest.mark.parametrize(
    "request_",
    [
        {"mode": "sparse", "query": "wi-fi music players 日本語の文書 c++ node.js"},
        {"explain": True, "snippets": {"fields": ["text"]}, "fields": ["title"]},
        {
            "facets": ["tag.one"],
            "filter": {"and": [{"field": "tag.one", "eq": "t1"}, {"field": "day", "lt": "1970-01-01"}]},
        },
        {"filter": {"field": "year", "gt": 1.7976931348623157e308}},
        {"filter": {"field": "year", "lte": 1.7976931348623157e308}},
        {
            "query": None,
            "sort": {"field": "day", "order": "asc"},
            "facet_ranges": {"day": ["1965-01-01"]},
            "offset": 40,
        },
        {"query": None, "sort": {"field": "tag.one"}, "facet_ranges": {"year": [2005, 2010.5]}, "snippets": {}},
        {"query": None, "filter": {"field": "year", "gt": 9999}, "facets": ["tag.one"], "facet_ranges": {"year": [1]}},
    ],
)
def test_the_answers_are_the_same(local: SearchEngine, engine: SearchEngine, request_: dict[str, Any]) -> None:
    """What the random requests of tests/backends don't ask: snippets, bounds, dates before 1970, a dot in a name."""
    asked = SearchRequest.model_validate({"query": "play music from the terminal", **request_})
    here, there = (without_times(one.search(asked).model_dump()) for one in (local, engine))
    agree(here, there, 1e-5)  # rounding of dense scores


def test_a_cluster_neither_corrects_nor_completes(engine: SearchEngine) -> None:
    assert engine.parts.backends.spellings is None
    with pytest.raises(InvalidRequestError) as caught:
        engine.search(SearchRequest(query="musik", spelling="auto", prefix=True))
    assert [error.field for error in caught.value.errors] == ["spelling", "prefix"]
    assert "has spellings, and no cluster: leave it out" in str(caught.value)


def test_it_says_what_it_stands_on(engine: SearchEngine, cluster: Cluster) -> None:
    index = engine.parts.index
    with live(create_app(engine)) as url:
        info = httpx2.get(f"{url}/info", timeout=60).json()
        assert httpx2.get(f"{url}/readyz", timeout=60).json() == {"status": "ready", "index": index}
        assert httpx2.post(f"{url}/search", json={"query": "music"}, timeout=60).status_code == 200
        metrics = httpx2.get(f"{url}/metrics", timeout=60).text
    for stage in ("dense", "sparse", "fetch"):
        assert f'lightretriever_stage_seconds_count{{backend="opensearch",stage="{stage}"}}' in metrics
    assert info["legs"] == {name: {"backend": "opensearch"} for name in ("dense", "sparse")}
    place = {"address": cluster.name, "alias": NAME, "index": index, "engine": "lucene"}
    assert info["cluster"] == {**place, "version": ".".join(map(str, cluster.version))}


def test_a_leg_that_the_cluster_refuses_is_missing_alone(bundle: Bundle, settings: Settings, cluster: Cluster) -> None:
    with behind(cluster, settings) as (proxy, own), warm(bundle, own) as engine:
        proxy.replaced = (rb'impacts\.[^"]+', b"ordinal")  # a field that the sparse leg's clauses can't ask
        answer = engine.search(SearchRequest(query="play music from the terminal"))
        assert (answer.degraded, len(answer.hits)) == (["sparse"], 10)
        with raises(SearchFailedError):
            engine.search(SearchRequest(query="play music from the terminal", mode="sparse"))
        engine.require_ready()
        proxy.replaced = None
        assert engine.search(SearchRequest(query="play music from the terminal")).degraded == []


def test_a_switched_alias_is_followed(bundle: Bundle, settings: Settings, cluster: Cluster, tmp_path: Path) -> None:
    folder = write_query_bundle(bundle, tmp_path / "query").path
    with EngineHolder.open(folder, settings) as holder:
        holder.engine.warm_up()
        holder.start()
        first = holder.engine
        with holder.lease() as leased:
            pushed = push(bundle, cluster, NAME, shards=1, replicas=0)
            assert holder.ask().result(60) is True
            assert (holder.engine.parts.index, leased.parts.index) == (pushed.facts["index"], first.parts.index)
            assert leased.search(SearchRequest(query="music")).hits  # in the index that it began with
        assert holder.ask().result(60) is False
        other = make_tiny_bundle(tmp_path / "other", seed=8, vocabulary="tokens", fields=FIELDS)
        push(other, cluster, NAME, replicas=0)
        with raises(BundleRefusedError, naming="tiny"):
            holder.ask().result(60)
        assert holder.engine.search(SearchRequest(query="music")).hits
    push(bundle, cluster, NAME, shards=2, replicas=0)


def test_an_index_that_is_gone(bundle: Bundle, settings: Settings, cluster: Cluster) -> None:
    name = f"{NAME}-gone"
    index = push(bundle, cluster, name, replicas=0).facts["index"]
    with warm(bundle, settings.model_copy(update={"opensearch_index": name})) as engine:
        other = push(bundle, cluster, name, shards=2, replicas=0).facts["index"]
        cluster.client.indices.delete(index=index)
        with raises(NotReadyError):
            engine.search(SearchRequest(query="music"))
        with raises(NotReadyError, naming="index_not_found_exception"):
            engine.require_ready()
        assert engine.parts.backends.present_index() == other  # the cluster answers, but the index is no less lost
        with raises(NotReadyError, naming="index_not_found_exception"):
            engine.require_ready()


@contextmanager
def behind(cluster: Cluster, settings: Settings, **others: Any) -> Iterator[tuple[Proxy, Settings]]:
    """What stands before the cluster, and the settings of a service behind it."""
    with proxied(cluster.name) as proxy:
        yield proxy, settings.model_copy(update={"opensearch_url": proxy.url, **others})


@pytest.mark.parametrize(
    ("held", "request_"),
    [
        (b'"_source":["raw"]', {}),
        (b'"_source":["raw"]', {"sort": {"field": "year"}}),
        (b'"_source":["vector"]', {"explain": True}),
        (b'"_source":["impacts"]', {"explain": True, "mode": "sparse"}),
        (b'"aggs"', {"facets": ["tag.one"]}),
    ],
)
def test_every_trip_has_the_time_of_the_request(
    bundle: Bundle, settings: Settings, cluster: Cluster, held: bytes, request_: dict[str, Any]
) -> None:
    with behind(cluster, settings) as (proxy, slow), SearchEngine.open(bundle, slow) as engine:
        engine.warm_up()
        proxy.held = held
        request = SearchRequest.model_validate({"query": "music", "deadline_ms": 1_000, **request_})
        with ThreadPoolExecutor(1) as thread:
            answer = thread.submit(engine.search, request)
            with pytest.raises(DeadlineError):
                answer.result(30)  # the service's own deadline is twice as long
            proxy.held = None
        engine.require_ready()


def test_a_leg_whose_vectors_can_not_be_read(bundle: Bundle, settings: Settings, cluster: Cluster) -> None:
    with behind(cluster, settings) as (proxy, broken), SearchEngine.open(bundle, broken) as engine:
        proxy.broken = b'"_source":["vector"]'
        with pytest.raises(NotReadyError):
            engine.search(SearchRequest(like="music"))


def test_a_swap_that_fails_in_passing_is_tried_again(
    bundle: Bundle,
    settings: Settings,
    cluster: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lightretriever.service.collections.collections._RETRY_S", 0.5)
    name, folder = f"{NAME}-passing", write_query_bundle(bundle, tmp_path / "query").path
    push(bundle, cluster, name, replicas=0)
    with behind(cluster, settings, opensearch_index=name) as (proxy, own), EngineHolder.open(folder, own) as holder:
        holder.engine.warm_up()
        proxy.broken = b"_msearch"
        other = push(bundle, cluster, name, shards=2, replicas=0).facts["index"]
        holder.start()
        wait_until(lambda: "bundle refused" in caplog.messages)
        assert holder.engine.parts.index != other
        proxy.broken = None
        wait_until(lambda: holder.engine.parts.index == other)


def test_the_command_serves_a_query_bundle(bundle: Bundle, settings: Settings, tmp_path: Path) -> None:
    folder = write_query_bundle(bundle, tmp_path / "query").path
    command = str(Path(sys.executable).with_name("lightretriever"))
    program = [command, "serve", str(folder), "--port", "0"]
    environment = {**os.environ, "LIGHTRETRIEVER_WARM_UP_QUERIES": "3", "LIGHTRETRIEVER_DEADLINE_MS": "60000"}
    where = ["--opensearch-url", str(settings.opensearch_url), "--index", NAME, "--workers", "1"]
    with subprocess.Popen([*program, *where], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert httpx2.get(f"{url}/readyz", timeout=60).status_code == 200
            assert len(httpx2.post(f"{url}/search", json={"query": "music"}, timeout=60).json()["hits"]) == 10
        finally:
            process.terminate()


DOCUMENTS = 1000
FOUND = 100


def first_documents(whole: Bundle, path: Path) -> Bundle:
    """Write a bundle of the first documents of another one, whose vectors, impacts and table it keeps."""
    ordinals = np.arange(DOCUMENTS)
    with whole.sparse() as sparse:
        indptr, terms, impacts, names = numbered(sparse.rows(0, DOCUMENTS))
        ids, documents = sparse.ids()[:DOCUMENTS], sparse.documents(ordinals)
    batch = EncodedBatch(ids, documents, whole.dense().vectors(ordinals), indptr, terms, impacts, names)
    return write_again(whole, iter([batch]), path, LiveInfo(journal="none", position=0))


def test_hnsw_finds_what_the_bundle_finds_in_documents_of_the_demo(cluster: Cluster, tmp_path: Path) -> None:
    unpack(ARCHIVE, tmp_path / "whole")
    bundle, name = first_documents(Bundle.open(tmp_path / "whole"), tmp_path / "bundle"), f"{NAME}-demo"
    push(bundle, cluster, name, replicas=0)
    recall = []
    with (
        SearchEngine.open(bundle, Settings(deadline_ms=60_000)) as local,
        SearchEngine.open(bundle, served_by(cluster, name)) as remote,
    ):
        for text in local.parts.documents.probes(100):
            query = local.parts.encoder.encode(text, bundle.manifest.default_task, StageClock())
            there, here = (
                engine.parts.backends.search(query, ["dense"], FOUND, None, perf_counter() + 60).outcomes["dense"].value
                for engine in (remote, local)
            )
            assert there is not None
            assert here is not None
            recall.append(len(np.intersect1d(there.ordinals, here.ordinals)) / FOUND)
            exact = local.parts.backends.scores(query.vector, there.ordinals)
            assert there.scores == pytest.approx(exact, abs=1e-5)
    assert np.mean(recall) >= 0.99  # the bundle's own index is exact
