"""Documents written to a real cluster: what it does otherwise than a journal, see `tests/live/test_documents.py`."""

import os
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.cluster.live import LiveIndex
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.errors import ConflictError, UnencodedError
from lightretriever.artifacts.live.documents import Change, Written, read_fields
from lightretriever.service.client import SearchClient
from lightretriever.service.errors import DeadlineError, DocumentNotFoundError
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.live import get_document
from lightretriever.service.settings import Settings
from tests.service.live import live
from tests.support.cluster import proxied, served_by
from tests.support.keys import keys_file
from tests.support.waiting import wait_until
from tests.support.wordings import raises
from tests.support.written import ENTRIES, NEW, VECTOR, ask, changeable, found, impacts_of

NAME = f"documents-{os.getpid()}"


@pytest.fixture(scope="module")
def settings(cluster: Cluster, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    push(bundle, cluster, NAME, replicas=0, skipped=int, written=int)
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


def test_other_fields_keep_vector_and_impacts(client: SearchClient, engine: SearchEngine, cluster: Cluster) -> None:
    """After a merge of the index's segments, too."""
    live = engine.parts.backends.live
    assert isinstance(live, LiveIndex)
    until = perf_counter() + 1e6
    before, terms, document = live.get("music", until), engine.terms("music"), client.document("music")
    client.put_document("music", {**document.fields, "year": 1999}, wait=True)
    cluster.client.indices.flush(index=NAME)
    cluster.client.indices.forcemerge(index=NAME, params={"max_num_segments": 1})
    after = live.get("music", until)
    assert before is not None
    assert after is not None
    same = ("ordinal", "vector", "impacts")
    assert [after.source[name] for name in same] == [before.source[name] for name in same]
    vector = np.roll(VECTOR, 1) * np.arange(1, 17)
    client.put_document("music", document.fields, vector=vector.tolist(), wait=True)
    now = engine.parts.backends.vectors(np.array([before.source["ordinal"]]))[0]
    assert now == pytest.approx(vector / np.linalg.norm(vector), abs=1e-6)
    assert engine.terms("music") == terms


def test_changes_of_one_call_are_made_in_their_order(engine: SearchEngine, bundle: Bundle) -> None:
    live = changeable(engine)
    vector, impacts = np.full(16, 0.25, np.float32), {"xylophone": 3}
    first, second = (read_fields("ordered", {"text": NEW["text"], "year": year}, bundle.manifest) for year in (1, 2))
    others = [read_fields(f"other-{n}", {"text": NEW["text"]}, bundle.manifest) for n in range(300)]
    changes = [
        Change("ordered", first),
        Change("ordered", first, vector, impacts),
        Change("ordered", second),
        Change("ordered", second, version="1.1.other"),
        *(Change(one.id, one, vector, impacts) for one in others),
        Change("ordered"),
        Change("ordered"),
        *(Change(one.id) for one in others),
    ]
    results = live.write(changes, perf_counter() + 60, wait=False)
    assert [type(one) for one in results[:4]] == [UnencodedError, Written, Written, ConflictError]
    made = [one.created for one in results if isinstance(one, Written)]
    assert made == [True, False, *[True] * 300, False, *[False] * 300]
    assert results[305] is None
    assert live.get("ordered", perf_counter() + 60) is None


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


def test_a_bundle_on_this_machine_does_not_change(tiny_bundle: Bundle, settings: Settings) -> None:
    own = Settings(deadline_ms=60_000, api_keys_file=settings.api_keys_file)
    with SearchEngine.open(tiny_bundle, own) as engine, live(create_app(engine)) as url:
        for method in ("PUT", "DELETE"):
            answer = ask(method, f"{url}/documents/music", json={"fields": NEW})
            assert (answer.status_code, answer.json()["kind"]) == (409, "immutable")
            assert "build a new bundle" in answer.json()["detail"]
