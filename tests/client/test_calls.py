"""Every call, made to a real server by both clients."""

import json
from pathlib import Path

import httpx2
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import AnswerError, ClientError
from lightretriever.service.schemas import (
    BatchRequest,
    EncodeRequest,
    Info,
    LinearFusion,
    RrfFusion,
    SearchRequest,
    SearchResponse,
    Weights,
)
from tests.client.both import Client, Maker
from tests.client.scripted import FOUND, Scripted, answer, problem
from tests.service.live import live_bundles
from tests.support.keys import keys_file
from tests.support.wordings import raises
from tests.support.written import ENTRIES, KEY, READER

ODD_IDS = ("music", 'odd id/with "quotes" & ünï', ".", "..", "../info", "a%2Fb", "50%", "?k=1", "#x", "a\nb", "🎵")


def untimed(response: SearchResponse) -> dict[str, object]:
    return response.model_dump(exclude={"timings_ms"})


def test_a_search_is_that_of_the_service(client: Client, url: str) -> None:
    body = {"query": "play music", "k": 3, "mode": "sparse", "fields": ["title"]}
    plain = SearchResponse.model_validate_json(httpx2.post(f"{url}/search", json=body, timeout=90).content)
    found = client.search("play music", k=3, mode="sparse", fields=["title"])
    assert len(found.hits) == 3
    assert untimed(found) == untimed(plain)
    assert untimed(client.search(SearchRequest.model_validate(body))) == untimed(plain)


@pytest.mark.parametrize(
    "fusion",
    [
        RrfFusion(method="rrf"),
        LinearFusion(),
        LinearFusion(weights=Weights(dense=1, sparse=0)),
        {"method": "linear", "weights": {"dense": 1.0, "sparse": 0.0}},
    ],
)
def test_nested_fields_arrive_whole(client: Client, url: str, fusion: object) -> None:
    request = SearchRequest.model_validate({"query": "music", "fusion": fusion})
    plain = httpx2.post(f"{url}/search", content=request.model_dump_json(), headers=JSON, timeout=90)
    found = client.search("music", fusion=fusion)
    assert untimed(found) == untimed(SearchResponse.model_validate_json(plain.content))


JSON = {"content-type": "application/json"}


def test_only_what_was_set_is_sent(make: Maker) -> None:
    """So a service that doesn't know a field yet answers those who don't use it."""
    with Scripted(answer()) as server, make(server.url) as client:
        client.search("music", k=7)
        client.search(SearchRequest(query="music", fusion=LinearFusion()))
    first, second = (json.loads(request["body"]) for request in server.seen)
    assert first == {"query": "music", "k": 7}
    assert "authorization" not in server.seen[0]["headers"]
    assert second["fusion"]["method"] == "linear"


def test_what_a_newer_service_tells_is_passed_over(make: Maker) -> None:
    hit = {**FOUND["hits"][0], "explain": {"music": 1}}  # type: ignore[index]
    newer = {**FOUND, "hits": [hit], "facets": {"year": []}, "timings_ms": {"total": 1.0, "facets": 0.1}}
    with Scripted(answer(newer)) as server, make(server.url) as client:
        assert client.search("music").hits[0].id == "a"


def test_a_batch(client: Client) -> None:
    searches: list[str | SearchRequest] = ["play music", SearchRequest(query="text editor", k=1), "Ελληνικά"]
    results = client.search_batch(searches, k=2).results
    assert [len(response.hits) for response in results] == [2, 1, 2]
    for search, response in zip(searches, results, strict=True):
        alone = client.search(search) if isinstance(search, SearchRequest) else client.search(search, k=2)
        assert untimed(alone) == untimed(response)
    whole = BatchRequest(searches=[SearchRequest(query="music")])
    assert untimed(client.search_batch(whole).results[0]) == untimed(client.search("music"))


def test_encode(client: Client) -> None:
    encoded = client.encode("play music", task="fact")
    assert encoded.task == "fact"
    assert len(encoded.dense) == encoded.dimension
    assert client.encode(EncodeRequest(text="play music", task="fact")).tokens == encoded.tokens


def test_a_document(client: Client) -> None:
    assert client.document("music").fields["title"] == "Terminal music player"
    assert client.document(ODD_IDS[1]).id == ODD_IDS[1]


def test_a_document_is_written_and_deleted(make: Maker) -> None:
    """What a service on a cluster is sent; tests/cluster has what it does."""
    written = {"id": "a/..", "created": True, "version": "3.1"}
    busy = problem(503, "write_failed")
    with Scripted(busy, answer(written), answer(written), busy) as server, make(server.url) as client:
        fields = {"text": "music"}
        assert client.put_document("a/..", fields, vector=[1, 1.0], impacts={"music": 3}).version == "3.1"
        client.put_document("a/..", fields, version="3.1", wait=True)
        for call in (lambda: client.put_document("a", fields, version="3.1"), lambda: client.delete_document("a")):
            with raises(AnswerError):
                call()
        with raises(AnswerError):
            client.put_document("a", {"_id": "a"})
    assert [request["path"] for request in server.seen] == [
        *["/documents/a%2F%2E%2E"] * 2,  # a write is made again, but not one over a version, or a deletion
        "/documents/a%2F%2E%2E?refresh=wait_for",
        *["/documents/a"] * 2,
    ]
    first, second = (json.loads(server.seen[number]["body"]) for number in (1, 2))
    assert first == {"fields": fields, "vector": [1.0, 1.0], "impacts": {"music": 3}}
    assert second == {"fields": fields}
    assert [request["headers"].get("if-match") for request in server.seen[1:3]] == [None, '"3.1"']


def test_vectors_of_texts(client: Client) -> None:
    answer = client.embeddings(["play music", "edit text"])
    assert [one.embedding for one in answer.data] == [client.encode(text).dense for text in ("play music", "edit text")]
    assert client.embeddings("play music").data == answer.data[:1]
    assert client.embeddings("play music", model="none").data == answer.data[:1]  # it names no task: the default one
    with pytest.raises(AnswerError) as error:
        client.embeddings([])
    assert (error.value.status, error.value.kind) == (422, "invalid_request")


@pytest.mark.parametrize("document_id", [*ODD_IDS[2:], "", "x" * 3000])
def test_an_id_is_asked_for_as_it_is(client: Client, document_id: str) -> None:
    with pytest.raises(AnswerError) as error:
        client.document(document_id)
    assert (error.value.status, error.value.kind) == (404, "document_not_found")
    assert error.value.detail.startswith(f"No document has the id {document_id[:50]!r}"[:-1])


def test_info_and_readiness(client: Client, url: str, tiny_bundle: Bundle) -> None:
    assert client.info() == Info.model_validate_json(httpx2.get(f"{url}/info", timeout=90).content)
    assert client.info().bundle.documents == tiny_bundle.manifest.documents
    assert client.ready()


def test_reload_and_keys(make: Maker, tiny_bundle: Bundle, tmp_path: Path) -> None:
    with live_bundles(tiny_bundle.path, api_keys_file=keys_file(tmp_path, *ENTRIES)) as url:
        with make(url, api_key=KEY, timeout_s=120) as client:
            reloaded = client.reload()
            assert not reloaded.swapped
            assert reloaded.bundle.version == tiny_bundle.manifest.digest
            assert client.search("music").hits
            assert KEY not in repr(client.__dict__)
        for key, status, kind in ((None, 401, "unauthorized"), ("wrong", 401, "unauthorized")):
            with make(url, api_key=key, timeout_s=120) as client, pytest.raises(AnswerError) as error:
                client.search("music")
            assert (error.value.status, error.value.kind) == (status, kind)
            assert "wrong" not in str(error.value)
        with make(url, api_key=READER, timeout_s=120) as client, pytest.raises(AnswerError) as error:
            client.reload()
        assert (error.value.status, error.value.kind) == (403, "forbidden")
        assert error.value.request_id


def test_a_base_url_may_have_a_path(make: Maker) -> None:
    with Scripted(answer()) as server:
        for base in (f"{server.url}/search-api", f"{server.url}/search-api/"):
            with make(base) as client:
                client.search("music")
                with pytest.raises(AnswerError):  # a search's answer is no document
                    client.document("..")
    assert {request["path"] for request in server.seen} == {"/search-api/search", "/search-api/documents/%2E%2E"}


@pytest.mark.parametrize(
    "base_url", ["", "localhost:8080", "ftp://h", "http://", "http://h:x", "http://h?a=b", "http://[::1"]
)
def test_what_is_no_address_is_named(make: Maker, base_url: str) -> None:
    with raises(ClientError, naming="URL"):
        make(base_url)


@pytest.mark.parametrize("key", ["", " ", "a b", "ключ", "a\r\nx: y", "a\n"])
def test_what_is_no_key_is_refused_and_not_told(make: Maker, key: str) -> None:
    with raises(ClientError) as error:
        make("http://127.0.0.1:1", api_key=key)
    assert not key.strip() or key not in str(error.value)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_time_that_is_none_is_refused(make: Maker, timeout_s: float) -> None:
    with raises(ClientError, naming="timeout_s"):
        make("http://127.0.0.1:1", timeout_s=timeout_s)
