"""Documents written and deleted over HTTP, beside a bundle on this machine and on a real cluster alike."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cluster.push import push
from lightretriever.service.client import AnswerError, SearchClient
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.cluster import connected, remove_indexes
from tests.support.keys import keys_file
from tests.support.written import ENTRIES, NEW, VECTOR, ask, found, impacts_of, lines

NAME = f"live-{os.getpid()}"
MOST = {"journal": 65_535, "cluster": 511}
"""The highest impact."""
COUNT = 260


@pytest.fixture(scope="module", params=MOST)
def kind(request: pytest.FixtureRequest) -> str:
    """Where the documents are."""
    return str(request.param)


@pytest.fixture(scope="module")
def engine(
    request: pytest.FixtureRequest, bundle: Bundle, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SearchEngine]:
    folder = tmp_path_factory.mktemp(kind)
    place: dict[str, Any] = {"live": folder / "live"}
    if kind == "cluster":
        address = request.getfixturevalue("opensearch")
        place = {"opensearch_url": address, "opensearch_index": NAME}
        with connected(address) as cluster:
            push(bundle, cluster, NAME, replicas=0)
    keys = keys_file(folder, *ENTRIES)
    settings = Settings(deadline_ms=60_000, warm_up_queries=1, watch_s=0, api_keys_file=keys, **place)
    with SearchEngine.open(bundle, settings) as engine:
        yield engine
    if kind == "cluster":
        remove_indexes(place["opensearch_url"], NAME)


def test_a_new_document_is_found_by_every_leg(client: SearchClient, engine: SearchEngine) -> None:
    impacts = impacts_of(engine, "zebra xylophone")
    written = client.put_document("odd/é..", NEW, vector=VECTOR, impacts=impacts, wait=True)
    assert written.result == "created"
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
    assert client.put_document("odd/é..", NEW, vector=VECTOR, impacts=impacts).result == "created"
    client.delete_document("odd/é..", wait=True)


def test_other_fields_keep_vector_and_impacts(client: SearchClient, engine: SearchEngine) -> None:
    document, terms = client.document("music"), engine.terms("music")
    before = {hit.id: hit.score for hit in client.search("terminal music player", k=5).hits}
    assert client.put_document("music", {**document.fields, "year": 1999}, wait=True).result == "changed"
    assert engine.terms("music") == terms
    assert {hit.id: hit.score for hit in client.search("terminal music player", k=5).hits} == pytest.approx(before)
    assert "music" in found(client, "music", filter={"field": "year", "eq": 1999})
    client.put_document("music", document.fields, vector=VECTOR)
    assert engine.terms("music") == terms


def test_only_the_version_that_was_read_is_written_over(client: SearchClient, engine: SearchEngine) -> None:
    bundled = client.document("editor")
    changed = client.put_document("editor", {**bundled.fields, "year": 5}, version=bundled.version)
    first = client.put_document("versioned", NEW, vector=VECTOR, impacts=impacts_of(engine, "zebra"))
    second = client.put_document("versioned", {**NEW, "year": 1}, version=first.version)
    writes: tuple[Callable[[], object], ...] = (
        lambda: client.put_document("editor", bundled.fields, version=bundled.version),
        lambda: client.put_document("versioned", NEW, version=first.version),
        lambda: client.delete_document("versioned", version=first.version),
        lambda: client.put_document("nobody", NEW, version=first.version),
        lambda: client.put_document("versioned", NEW, version=f"{second.version}"[:-12] + 12 * "0"),  # of another index
    )
    for write in writes:
        with pytest.raises(AnswerError) as error:
            write()
        assert (error.value.status, error.value.kind) == (412, "version_conflict")
    assert client.document("versioned").version == second.version
    assert client.document("editor").version == changed.version
    client.delete_document("versioned", version=second.version, wait=True)


def test_writers_at_the_same_time_do_not_lose_each_other(client: SearchClient, engine: SearchEngine) -> None:
    names, impacts = [f"many-{number}" for number in range(8)], impacts_of(engine, "zebra")
    for name in names:
        client.put_document(name, NEW, vector=VECTOR, impacts=impacts, wait=name == names[-1])
    terms = engine.terms("many-0")

    def write(number: int) -> str | None:
        given: dict[str, Any] = {"vector": VECTOR, "impacts": impacts} if number % 3 else {}
        return client.put_document(f"many-{number % 8}", {**NEW, "year": number}, **given).version

    with ThreadPoolExecutor(8) as threads:
        versions = set(threads.map(write, range(64)))
    assert len(versions) == 64
    assert {client.document(name).version for name in names} <= versions
    client.put_document("many-0", NEW, wait=True)
    assert engine.terms("many-0") == terms
    for name in names:
        client.delete_document(name, wait=name == names[-1])
    assert not [name for name in found(client, "zebra", k=200) if name in names]


def test_many_changes_come_as_lines_and_are_made_in_their_order(
    url: str, client: SearchClient, engine: SearchEngine
) -> None:
    """More than a cluster takes at once."""
    whole = {"fields": NEW, "vector": VECTOR, "impacts": impacts_of(engine, "zebra")}
    answer = lines(
        url,
        *({"id": f"line-{number}", **whole} for number in range(COUNT)),
        {"id": "line-1", "fields": {**NEW, "year": 3}},
        {"id": "line-2", "delete": True},
        {"id": "line-2", "delete": True},
        {"id": "unknown", "fields": NEW},
        {"id": "line-3", "fields": NEW, "version": "1.0"},
        {"id": "line-2", **whole},
    )
    assert answer.status_code == 200, answer.text
    results = answer.json()["results"]
    assert [one["result"] for one in results] == COUNT * ["created"] + [
        *("changed", "deleted", "missing", "refused", "refused", "created")
    ]
    assert "the document is new" in results[COUNT + 3]["reason"]
    assert "not 1.0" in results[COUNT + 4]["reason"]
    assert client.document("line-1").version == results[COUNT]["version"]
    names = {f"line-{number}" for number in range(COUNT)}
    assert names <= set(found(client, "zebra", mode="sparse", k=500, candidates=500))
    assert client.search("zebra", filter={"field": "year", "eq": 3}).hits[0].id == "line-1"
    lines(url, *({"id": name, "delete": True} for name in names))
    assert not names & set(found(client, "zebra", k=500, candidates=500))


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({}, "fields", "required"),
        ({"fields": NEW, "more": 1}, "more", "there is no such field"),
        ({"fields": NEW}, "vector", "is missing, but the document is new"),
        ({"fields": NEW, "vector": VECTOR}, "impacts", "is missing, but the document is new"),
        ({"fields": NEW, "vector": [1.0] * 17}, "vector", "it has 17 values, those of the index have 16"),
        ({"fields": NEW, "vector": [1e308] * 16}, "vector", "its length is inf"),
        ({"fields": NEW, "vector": [1.0, "x"]}, "vector.1", "should be a valid number"),
        ({"fields": NEW, "impacts": {"300": 65_536}}, "impacts.300", "65536; in this index it is 1 to {most}"),
        ({"fields": NEW, "impacts": {"300": 0}}, "impacts.300", "the impact is 0"),
        ({"fields": NEW, "impacts": {"300": 1.5}}, "impacts.300", "should be a valid integer"),
        ({"fields": NEW, "impacts": {"400000": 5}}, "impacts.400000", "is no token id; they are 0 to "),
        ({"fields": NEW, "impacts": {"two words": 5}}, "impacts.two words", "is no token id"),
        ({"fields": {**NEW, "colour": "red"}}, "fields.colour", "no document of the bundle has such a field, only: "),
        ({"fields": {**NEW, "year": "soon"}}, "fields", 'field "year": expected a number'),
        ({"fields": {"title": "Zebra"}}, "fields", '"text" is missing or null'),
        ({"fields": {"text": " "}}, "fields", "is empty"),
        ({"fields": {**NEW, "_id": "x"}}, "fields", "leave _id out"),
    ],
)
def test_a_bad_document_is_told_before_anything_is_written(
    url: str, kind: str, client: SearchClient, body: dict[str, Any], field: str, message: str
) -> None:
    answer = ask("PUT", f"{url}/documents/bad", json=body)
    problem = answer.json()
    assert (answer.status_code, problem["kind"]) == (422, "invalid_request")
    assert problem["errors"][0]["field"] == field
    assert message.replace("{most}", f"{MOST[kind]}") in problem["errors"][0]["message"]
    with pytest.raises(AnswerError):
        client.document("bad")


def test_a_bad_option_is_told(url: str) -> None:
    for path, headers, field in (
        ("?refresh=true", {}, "refresh"),
        ("?wait=1", {}, "wait"),
        ("", {"if-match": "12.1"}, "if-match"),
        ("", {"if-match": "*"}, "if-match"),
        ("", {"if-none-match": "*"}, "if-none-match"),
    ):
        answer = ask("PUT", f"{url}/documents/bad{path}", headers=headers, json={"fields": NEW})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
    tagged = ask("GET", f"{url}/documents/editor")
    assert tagged.headers["etag"] == f'"{tagged.json()["version"]}"'


@pytest.mark.parametrize("document_id", ["", " ", "a\nb", 600 * "x", ".", "_all", "*"])
def test_an_id_that_no_document_can_have(url: str, document_id: str) -> None:
    path = f"{url}/documents/{quote(document_id, safe='').replace('.', '%2E')}"
    for method in ("GET", "DELETE"):
        answer = ask(method, path)
        assert (answer.status_code, answer.json()["kind"]) == (404, "document_not_found")
