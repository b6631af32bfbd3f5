"""Documents written to a real cluster: what it does otherwise than a journal, see `tests/live/test_documents.py`."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.cluster.live import LiveIndex
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.live.documents import Change
from lightretriever.service.client import AnswerError, SearchClient
from lightretriever.service.errors import DeadlineError, DocumentNotFoundError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.live import get_document
from lightretriever.service.settings import Settings
from tests.support.cluster import connected, own_cluster, proxied, served_by
from tests.support.keys import keys_file
from tests.support.waiting import wait_until
from tests.support.wordings import raises
from tests.support.written import ENTRIES, NEW, VECTOR, changeable, found, impacts_of, opened

NAME = f"documents-{os.getpid()}"


@pytest.fixture(scope="module")
def settings(cluster: Cluster, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    push(bundle, cluster, NAME, replicas=0)
    keys = keys_file(tmp_path_factory.mktemp("keys"), *ENTRIES)
    return served_by(cluster, NAME, api_keys_file=keys)


def test_a_change_is_seen_within_a_second(client: SearchClient, engine: SearchEngine) -> None:
    """The cluster's refresh interval is a second; the bound here allows for a busy machine."""
    client.search("zebra")
    client.put_document("soon", NEW, vector=VECTOR, impacts=impacts_of(engine, "zebra"))
    wait_until(lambda: "soon" in found(client, "zebra", mode="sparse"))
    client.delete_document("soon", wait=True)


def test_a_read_that_is_late_speaks_of_no_write(engine: SearchEngine) -> None:
    with raises(DeadlineError):
        get_document(engine, "doc-1", StageClock(perf_counter() - 1e6))


def test_vector_and_impacts_outlive_a_merge(client: SearchClient, engine: SearchEngine, cluster: Cluster) -> None:
    live = engine.parts.backends.live
    assert isinstance(live, LiveIndex)
    until = perf_counter() + 1e6
    before, document = live.get("music", until), client.document("music")
    client.put_document("music", {**document.fields, "year": 1999}, wait=True)
    cluster.client.indices.flush(index=NAME)
    cluster.client.indices.forcemerge(index=NAME, params={"max_num_segments": 1})
    after = live.get("music", until)
    assert before is not None
    assert after is not None
    same = ("ordinal", "vector", "impacts")
    assert [after.source[name] for name in same] == [before.source[name] for name in same]
    client.put_document("music", document.fields, wait=True)


def test_documents_that_vanish_during_a_search(bundle: Bundle, settings: Settings, cluster: Cluster) -> None:
    """The search is made again, without them: its second trip no longer finds what the first one found."""
    with proxied(cluster.name) as proxy:
        own = settings.model_copy(update={"opensearch_url": proxy.url})
        with SearchEngine.open(bundle, own) as engine, ThreadPoolExecutor(1) as thread:
            live = changeable(engine)
            first = engine.search(SearchRequest(query="play music")).hits[0].id
            proxy.held = b'"_source":["raw"]'
            answer = thread.submit(engine.search, SearchRequest(query="play music"))
            wait_until(lambda: proxy.holding)
            live.write([Change(first)], perf_counter() + 1e6, wait=True)
            proxy.held = None
            hits = answer.result(60).hits
            assert first not in {hit.id for hit in hits}
            assert len(hits) == 10
            proxy.holding, proxy.held = False, b'"_source":["impacts"]'
            terms = thread.submit(engine.terms, hits[0].id)
            wait_until(lambda: proxy.holding)
            live.write([Change(hits[0].id)], perf_counter() + 1e6, wait=True)
            proxy.held = None
            with pytest.raises(DocumentNotFoundError):
                terms.result(60)
    with SearchEngine.open(bundle, settings) as again:  # the sample of documents lacks one
        again.warm_up()


@pytest.mark.slow
def test_versions_never_come_again_after_a_restore(bundle: Bundle, tmp_path: Path) -> None:
    encoded: dict[str, Any] = {"vector": VECTOR, "impacts": {"300": 5}}
    with own_cluster(1) as nodes, connected(nodes.urls[0]) as cluster:
        client, where = cluster.client, {"repository": "here", "snapshot": "one"}
        client.snapshot.create_repository(
            repository="here", body={"type": "fs", "settings": {"location": nodes.keep_snapshots()}}
        )
        index = push(bundle, cluster, "restored", replicas=0).facts["index"]
        settings = served_by(cluster, "restored", api_keys_file=keys_file(tmp_path, *ENTRIES))
        with opened(bundle, settings) as service:
            first = service.put_document("d", NEW, **encoded)
            client.snapshot.create(**where, body={"indices": index}, params={"wait_for_completion": "true"})
            known = [first.version, service.put_document("d", {**NEW, "year": 2}, **encoded).version]
            for removed in (True, True, False, False, True):  # the same snapshot, beside a service that goes on
                if removed:
                    client.indices.delete(index=index)
                else:
                    client.indices.close(index=index)
                client.snapshot.restore(**where, body={"indices": index}, params={"wait_for_completion": "true"})
                assert service.document("d").fields["year"] == NEW["year"]
                new = service.put_document("d", {**NEW, "year": 2}, **encoded).version  # the same change
                assert new not in known
                for version in known:
                    with pytest.raises(AnswerError) as error:
                        service.put_document("d", {**NEW, "year": 4}, version=version)
                    assert (error.value.status, error.value.kind) == (412, "version_conflict")
                assert service.document("d").version == new
                known.append(new)
