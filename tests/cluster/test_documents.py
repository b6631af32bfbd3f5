"""Documents written and deleted one by one, through a service whose legs are on a real cluster."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter, sleep
from typing import Any
from urllib.parse import quote

import httpx2
import numpy as np
import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.client import Cluster
from lightretriever.artifacts.cluster.live import LiveIndex
from lightretriever.artifacts.cluster.push import push
from lightretriever.artifacts.errors import ConflictError, UnencodedError
from lightretriever.artifacts.live.documents import Change, Written, read_fields
from lightretriever.service.client import AnswerError, SearchClient
from lightretriever.service.errors import DeadlineError, DocumentNotFoundError
from lightretriever.service.http.api_keys import new_key
from lightretriever.service.http.app import create_app
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.live import get_document
from lightretriever.service.settings import Settings

from tests.service.live import live
from tests.support.cluster import proxied
from tests.support.tiny import make_tiny_bundle

NAME = f"documents-{os.getpid()}"
KEY, ENTRY = new_key("both", ["search", "admin"])
NEW = {"title": "Zebra", "text": "A zebra plays the xylophone.", "year": 2026}
VECTOR = [1.0] * 16


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("live") / "tiny", vocabulary="both", fields={"year": "number"})


@pytest.fixture(scope="module")
def settings(cluster: Cluster, bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    push(bundle, cluster, NAME, replicas=0, skipped=int, written=int)
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_text(json.dumps([ENTRY.model_dump()]))
    return Settings(
        backend="opensearch",
        opensearch_url=cluster.name,
        opensearch_index=NAME,
        deadline_ms=60_000,
        warm_up_queries=1,
        watch_s=0,
        api_keys_file=keys,
    )


@pytest.fixture(scope="module")
def engine(bundle: Bundle, settings: Settings) -> Iterator[SearchEngine]:
    with SearchEngine.open(bundle, settings) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: SearchEngine) -> Iterator[str]:
    with live(create_app(engine)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[SearchClient]:
    with SearchClient(url, api_key=KEY, timeout_s=60) as client:
        yield client


def impacts_of(engine: SearchEngine, text: str) -> dict[str, int]:
    (terms,) = engine.parts.encoder.vocabulary.terms_of([text])
    return dict.fromkeys(terms, 300)


def found(client: SearchClient, query: str, **fields: Any) -> list[str]:
    return [hit.id for hit in client.search(query, **fields).hits]


def test_a_new_document_is_found_by_every_leg(client: SearchClient, engine: SearchEngine) -> None:
    written = client.put_document(
        "odd/é..", NEW, vector=VECTOR, impacts=impacts_of(engine, "zebra xylophone"), wait=True
    )
    assert written.created
    document = client.document("odd/é..")
    assert (document.fields, document.version) == (NEW, written.version)
    assert found(client, "zebra xylophone", mode="sparse")[0] == "odd/é.."
    assert "odd/é.." in found(client, "zebra xylophone", mode="dense", k=200)
    (hit,) = client.search("zebra", filter={"field": "year", "eq": 2026}, explain=True, snippets={}).hits
    assert hit.fields == NEW
    assert hit.explanation is not None
    assert hit.sparse is not None
    assert sum(word.sparse or 0 for word in hit.explanation.words) == pytest.approx(hit.sparse.score)
    client.delete_document("odd/é..", version=written.version, wait=True)
    assert "odd/é.." not in found(client, "zebra xylophone", k=200)
    with pytest.raises(AnswerError) as error:
        client.delete_document("odd/é..")
    assert (error.value.status, error.value.kind) == (404, "document_not_found")


def test_a_change_is_seen_within_a_second(client: SearchClient, engine: SearchEngine) -> None:
    """The cluster's refresh interval is a second; the bound here allows for a busy machine."""
    client.search("zebra")
    client.put_document("soon", NEW, vector=VECTOR, impacts=impacts_of(engine, "zebra"))
    end = perf_counter() + 60
    while "soon" not in found(client, "zebra", mode="sparse"):
        assert perf_counter() < end
    client.delete_document("soon", wait=True)


def test_a_read_that_is_late_speaks_of_no_write(engine: SearchEngine) -> None:
    with pytest.raises(DeadlineError, match="The document did not come in time"):
        get_document(engine, "doc-1", StageClock(perf_counter() - 1e6))


def test_other_fields_keep_vector_and_impacts(client: SearchClient, engine: SearchEngine, cluster: Cluster) -> None:
    live = engine.parts.backends.live
    assert isinstance(live, LiveIndex)
    until = perf_counter() + 1e6
    before, terms = live.get("music", until), engine.terms("music")
    document = client.document("music")
    written = client.put_document(
        "music", {**document.fields, "year": 1999, "title": document.fields["title"]}, wait=True
    )
    assert not written.created
    cluster.client.indices.flush(index=NAME)
    cluster.client.indices.forcemerge(index=NAME, params={"max_num_segments": 1})
    after = live.get("music", until)
    assert before is not None
    assert after is not None
    same = ("ordinal", "vector", "impacts")
    assert [after.source[name] for name in same] == [before.source[name] for name in same]
    assert engine.terms("music") == terms
    assert "music" in found(client, "music", filter={"field": "year", "eq": 1999})
    vector = np.roll(VECTOR, 1) * np.arange(1, 17)
    client.put_document("music", document.fields, vector=vector.tolist(), wait=True)
    now = engine.parts.backends.vectors(np.array([before.source["ordinal"]]))[0]
    assert now == pytest.approx(vector / np.linalg.norm(vector), abs=1e-6)
    assert engine.terms("music") == terms


def test_changes_of_one_call_are_made_in_their_order(engine: SearchEngine, bundle: Bundle) -> None:
    live = engine.parts.backends.live
    assert live is not None
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


def test_only_the_version_that_was_read_is_written_over(client: SearchClient, engine: SearchEngine) -> None:
    first = client.put_document("versioned", NEW, vector=VECTOR, impacts=impacts_of(engine, "zebra"))
    second = client.put_document("versioned", {**NEW, "year": 1}, version=first.version)
    for write in (
        lambda: client.put_document("versioned", NEW, version=first.version),
        lambda: client.delete_document("versioned", version=first.version),
        lambda: client.put_document("nobody", NEW, version=first.version),
        lambda: client.put_document("versioned", NEW, version=second.version[:-12] + 12 * "0"),  # of another index
    ):
        with pytest.raises(AnswerError) as error:
            write()
        assert (error.value.status, error.value.kind) == (412, "version_conflict")
    assert client.document("versioned").version == second.version
    client.delete_document("versioned", version=second.version, wait=True)


def test_writers_without_a_version_do_not_lose_each_other(client: SearchClient, engine: SearchEngine) -> None:
    client.put_document("shared", NEW, vector=VECTOR, impacts=impacts_of(engine, "zebra"))
    with ThreadPoolExecutor(3) as pool:
        writes = [pool.submit(client.put_document, "shared", {**NEW, "year": year}) for year in range(3)]
        versions = {write.result().version for write in writes}
    assert len(versions) == 3
    live = engine.parts.backends.live
    assert isinstance(live, LiveIndex)
    stored = live.get("shared", perf_counter() + 1e6)
    assert stored is not None
    assert (len(stored.source["vector"]), stored.version in versions) == (16, True)
    client.delete_document("shared", wait=True)


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, "fields", "required"),
        ({"fields": NEW, "more": 1}, "more", "there is no such field"),
        ({"fields": NEW}, "vector", "is missing, but the document is new"),
        ({"fields": NEW, "vector": VECTOR}, "impacts", "is missing, but the document is new"),
        ({"fields": NEW, "vector": [1.0] * 17}, "vector", "it has 17 values, those of the index have 16"),
        ({"fields": NEW, "vector": [0.0] * 16}, "vector", "its length is 0"),
        ({"fields": NEW, "vector": [1.0, "x"]}, "vector", "value 1 is 'x', expected a number"),
        ({"fields": NEW, "impacts": {"#300": 512}}, "impacts.#300", "the impact is 512; in this index it is 1 to 511"),
        ({"fields": NEW, "impacts": {"#300": 0}}, "impacts.#300", "the impact is 0"),
        ({"fields": NEW, "impacts": {"300": 1.5}}, "impacts", "the impact of '300' is 1.5"),
        ({"fields": NEW, "impacts": {"#400000": 5}}, "impacts.#400000", "is no token id; they are #0 to #"),
        ({"fields": NEW, "impacts": {"#07": 5}}, "impacts.#07", "is no token id"),
        ({"fields": NEW, "impacts": {"two words": 5}}, "impacts.two words", "is no word"),
        ({"fields": {**NEW, "colour": "red"}}, "fields.colour", "no document of the bundle has such a field, only: "),
        ({"fields": {**NEW, "year": "soon"}}, "fields", 'field "year": expected a number'),
        ({"fields": {"title": "Zebra"}}, "fields", '"text" must be a string'),
        ({"fields": {"text": " "}}, "fields", "is empty"),
        ({"fields": {**NEW, "_id": "x"}}, "fields", "leave _id out"),
    ],
)
def test_a_bad_document_is_told_before_anything_is_written(
    url: str, client: SearchClient, body: dict[str, Any], field: str, message: str
) -> None:
    answer = put(url, body)
    problem = answer.json()
    assert (answer.status_code, problem["kind"]) == (422, "invalid_request")
    assert problem["errors"][0]["field"] == field
    assert message in problem["errors"][0]["message"]
    with pytest.raises(AnswerError):
        client.document("bad")


def put(url: str, body: object, path: str = "/documents/bad", **headers: str) -> httpx2.Response:
    return httpx2.put(f"{url}{path}", json=body, headers={"authorization": f"Bearer {KEY}", **headers}, timeout=60)


def test_a_bad_option_is_told(url: str) -> None:
    for path, headers, field in (
        ("?refresh=true", {}, "refresh"),
        ("?wait=1", {}, "wait"),
        ("", {"if-match": "12.1"}, "if-match"),
        ("", {"if-match": "*"}, "if-match"),
        ("", {"if-none-match": "*"}, "if-none-match"),
    ):
        answer = put(url, {"fields": NEW}, f"/documents/bad{path}", **headers)
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    tagged = httpx2.get(f"{url}/documents/editor", headers={"authorization": f"Bearer {KEY}"}, timeout=60)
    assert tagged.headers["etag"] == f'"{tagged.json()["version"]}"'


@pytest.mark.parametrize("document_id", ["", " ", "a\nb", 600 * "x", ".", "_all", "*"])
def test_an_id_that_no_document_can_have(url: str, document_id: str) -> None:
    path = f"{url}/documents/{quote(document_id, safe='').replace('.', '%2E')}"
    for method in ("GET", "DELETE"):
        answer = httpx2.request(method, path, headers={"authorization": f"Bearer {KEY}"}, timeout=60)
        assert (answer.status_code, answer.json()["kind"]) == (404, "document_not_found")


def test_documents_that_vanish_during_a_search(bundle: Bundle, settings: Settings, cluster: Cluster) -> None:
    """The search is made again, without them: its second trip no longer finds what the first one found."""
    with proxied(cluster.name) as proxy:
        own = settings.model_copy(update={"opensearch_url": proxy.url})
        with SearchEngine.open(bundle, own) as engine, ThreadPoolExecutor(1) as thread:
            live = engine.parts.backends.live
            assert live is not None
            first = engine.search(SearchRequest(query="play music")).hits[0].id
            proxy.held = b'"_source":["raw"]'
            answer = thread.submit(engine.search, SearchRequest(query="play music"))
            while not proxy.holding:
                sleep(0.01)
            live.write([Change(first)], perf_counter() + 1e6, wait=True)
            proxy.held = None
            hits = answer.result(60).hits
            assert first not in {hit.id for hit in hits}
            assert len(hits) == 10
            proxy.holding, proxy.held = False, b'"_source":["impacts"]'
            terms = thread.submit(engine.terms, hits[0].id)
            while not proxy.holding:
                sleep(0.01)
            live.write([Change(hits[0].id)], perf_counter() + 1e6, wait=True)
            proxy.held = None
            with pytest.raises(DocumentNotFoundError):
                terms.result(60)
    with SearchEngine.open(bundle, settings) as again:  # the sample of documents lacks one
        again.warm_up()


def test_a_bundle_on_this_machine_does_not_change(tiny_bundle: Bundle, settings: Settings) -> None:
    own = Settings(deadline_ms=60_000, api_keys_file=settings.api_keys_file)
    with SearchEngine.open(tiny_bundle, own) as engine, live(create_app(engine)) as url:
        for answer in (
            put(url, {"fields": NEW}),
            httpx2.delete(f"{url}/documents/music", headers={"authorization": f"Bearer {KEY}"}, timeout=60),
        ):
            assert (answer.status_code, answer.json()["kind"]) == (409, "immutable")
            assert "build a new bundle" in answer.json()["detail"]


def test_writing_needs_the_scope_admin(url: str) -> None:
    assert httpx2.put(f"{url}/documents/bad", json={"fields": NEW}, timeout=60).status_code == 401
    assert httpx2.delete(f"{url}/documents/music", timeout=60).status_code == 401
