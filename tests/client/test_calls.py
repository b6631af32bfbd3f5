"""The calls of both clients, over a real server, and what they send and read, over one that does as it is told; many
documents at once; and docs/client.md, whose examples run and whose tables name what there is."""

import gzip
import inspect
import json
import re
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import AnswerError, AsyncSearchClient, ClientError, SearchClient
from lightretriever.service.client.calls import Fields, Query
from lightretriever.service.client.documents import SCORES
from lightretriever.service.schemas import Info, Problem, SearchResponse
from tests.client.both import Client, Maker
from tests.client.generate_sync import CLIENT, generated
from tests.client.scripted import FOUND, HIT, Scripted, answer, failure, problem
from tests.service.live import live_bundles
from tests.support.keys import keys_file
from tests.support.wordings import raises
from tests.support.written import ENTRIES, KEY, NEW, READER

ODD_IDS = ("music", 'odd id/with "quotes" & ünï', ".", "..", "../info", "a%2Fb", "50%", "?k=1", "#x", "a\nb", "🎵")


def untimed(response: SearchResponse) -> dict[str, object]:
    return response.model_dump(exclude={"timings_ms"})


def test_the_synchronous_client_is_made_from_the_other_one() -> None:
    assert (CLIENT / "sync.py").read_text(encoding="utf-8") == generated()


def test_a_search_is_the_services_answer(client: Client, url: str) -> None:
    fields = {"k": 3, "mode": "sparse", "fields": ["title"], "fusion": {"method": "rrf"}, "explain": True}
    body = httpx2.post(f"{url}/search", json={"query": "play music", **fields}, timeout=90).content
    assert untimed(client.search("play music", **fields)) == untimed(SearchResponse.model_validate_json(body))
    with raises(AnswerError, naming="query: the field is required"):
        client.search(k=4)


def test_what_is_sent_and_what_a_newer_service_answers(make: Maker) -> None:
    newer = {**FOUND, "hits": [{**HIT, "newer": 1}], "timings_ms": {"total": 1.0, "newer": 0.1}}
    with Scripted(answer(newer)) as server, make(f"{server.url}/api/") as client:
        assert client.search("music ü", k=np.int64(7), weight=np.float32(0.5)).hits[0].id == "a"
    (seen,) = server.seen
    assert (seen["path"], seen["body"]) == ("/api/search", '{"query":"music ü","k":7,"weight":0.5}'.encode())
    assert "authorization" not in seen["headers"]


def test_a_batch(client: Client) -> None:
    results = client.search_batch(["play music", {"query": "text editor", "k": 1}, "Ελληνικά"], k=2).results
    assert [len(response.hits) for response in results] == [2, 1, 2]
    assert untimed(results[0]) == untimed(client.search("play music", k=2))
    with raises(AnswerError, naming="searches.1.query"):
        client.search_batch(["music", ""])


def test_encode(client: Client) -> None:
    encoded = client.encode("play music", task="fact")
    assert (encoded.task, len(encoded.dense)) == ("fact", encoded.dimension)


def test_a_document_is_asked_for_by_any_id(client: Client) -> None:
    assert client.document("music").fields["title"] == "Terminal music player"
    assert client.document(ODD_IDS[1]).id == ODD_IDS[1]
    for missing in (*ODD_IDS[2:], "", "x" * 3000):
        with pytest.raises(AnswerError) as error:
            client.document(missing)
        assert (error.value.status, error.value.kind) == (404, "document_not_found")
        assert error.value.detail.startswith(f"No document has the id {missing[:50]!r}"[:-1])


def test_a_document_is_written_and_deleted(make: Maker) -> None:
    """What a service is sent; tests/live has what it does."""
    written = {"id": "a/..", "result": "created", "version": "3.1"}
    busy = problem(503, "write_failed")
    with Scripted(busy, answer(written), answer(written), busy) as server, make(server.url) as client:
        fields = {"text": "music", "price": np.float32(2), "tags": np.array(["a"])}
        vector, impacts = np.ones(2, np.float32), {"music": np.int64(3)}
        assert client.put_document("a/..", fields, vector=vector, impacts=impacts).version == "3.1"  # type: ignore[arg-type]
        client.put_document("a/..", {}, version="3.1", wait=True)
        with raises(AnswerError, naming="write_failed"):
            client.put_document("a", {}, version="3.1")
        with raises(AnswerError, naming="write_failed"):
            client.delete_document("a")
    assert [request["path"] for request in server.seen] == [
        *["/documents/a%2F%2E%2E"] * 2,  # a write is made again, but not one over a version, or a deletion
        "/documents/a%2F%2E%2E?refresh=wait_for",
        *["/documents/a"] * 2,
    ]
    first, second = (json.loads(server.seen[number]["body"]) for number in (1, 2))
    sent = {"text": "music", "price": 2.0, "tags": ["a"]}
    assert first == {"fields": sent, "vector": [1.0, 1.0], "impacts": {"music": 3}}
    assert second == {"fields": {}}
    assert [request["headers"].get("if-match") for request in server.seen[1:3]] == [None, '"3.1"']


def test_info_readiness_and_keys(make: Maker, client: Client, url: str, tiny_bundle: Bundle, tmp_path: Path) -> None:
    assert client.info() == Info.model_validate_json(httpx2.get(f"{url}/info", timeout=90).content)
    assert client.ready()
    with live_bundles(tiny_bundle.path, api_keys_file=keys_file(tmp_path, *ENTRIES)) as guarded:
        with make(guarded, api_key=KEY, timeout_s=120) as own:
            assert own.reload().bundle.version == tiny_bundle.manifest.digest
            assert [listed.name for listed in own.collections().collections] == ["default"]
            assert KEY not in repr(own.__dict__)
        for key, kind in ((None, "unauthorized"), ("wrong", "unauthorized"), (READER, "forbidden")):
            with make(guarded, api_key=key, timeout_s=120) as other, raises(AnswerError, naming=kind) as error:
                other.reload()
            assert "wrong" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "naming"),
    [
        *(({"base_url": url}, "base URL") for url in ("", "localhost:8080", "ftp://h", "http://", "http://h:x")),
        *(({"base_url": url}, "base URL") for url in ("http://h?a=b", "http://[::1")),
        *(({"api_key": key}, "API key") for key in ("", " ", "a b", "ключ", "a\r\nx: y", "a\n")),
        *(({"timeout_s": seconds}, "timeout_s") for seconds in (0, -1, float("nan"))),
        ({"attempts": 0}, "attempts is 0"),
    ],
)
def test_settings_that_can_not_be_are_named(make: Maker, options: dict[str, Any], naming: str) -> None:
    with raises(ClientError, naming=naming) as error:
        make(**options)
    assert not options.get("api_key", "").strip() or options["api_key"] not in str(error.value)


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
UNWRITABLE: list[tuple[Callable[[Client], Any], str]] = [
    (lambda client: client.search("\ud800"), r"query: '\ud800' (str)"),
    (lambda client: client.search("a", **{"\udcff": 1}), r"body: the name '\udcff'"),
    (lambda client: client.search("a", filter={"and": [{"eq": {1, 2}}]}), "filter.and.0.eq: {1, 2} (set)"),
    (lambda client: list(client.search_many(["a", "\udcff"])), r"searches.1.query: '\udcff' (str)"),
    (lambda client: client.put_document("p-17", {}, vector=[1.0, np.nan]), "documents.p-17.vector.1: nan (float)"),
    (lambda client: client.put_documents([{"id": "a", "fields": {"when": Path()}}]), "documents.a.fields.when: "),
    (lambda client: client.put_documents([{"id": "a", "fields": {"n": [[{}, id]]}}]), "documents.a.fields.n.0.1: <"),
    (lambda client: client.put_document("a", {"b": {(1,): 2}}), "documents.a.fields.b: the name (1,)"),
    (lambda client: client.put_document("a", {"b": CIRCLE}), ".0.0.0.0: what is nested so deeply"),
    (lambda client: client.document(17), "The id 17 (int) is no UTF-8 text"),  # type: ignore[arg-type]
    (lambda client: client.document("\ud800"), r"'\ud800' (str) is no UTF-8 text"),
]


def test_what_can_not_be_written_is_named_and_not_sent(make: Maker) -> None:
    with Scripted(answer()) as server, make(server.url) as client:
        for call, naming in UNWRITABLE:
            with raises(ClientError, naming=naming) as error:
                call(client)
            assert str(error.value).encode()
        assert server.seen == []


def test_a_problem_is_told_whole(client: Client, url: str) -> None:
    sent = {"query": "music", "k": 3000, "candidates": 10**6, "fields": ["nope"]}
    told = Problem.model_validate_json(httpx2.post(f"{url}/search", json=sent, timeout=90).content)
    with pytest.raises(AnswerError) as caught:
        client.search("music", k=3000, candidates=10**6, fields=["nope"])
    error = caught.value
    assert (error.status, error.kind, error.title, error.detail) == (422, told.kind, told.title, told.detail)
    assert error.errors == tuple(told.errors)
    assert error.request_id
    assert str(error) == f"{told.detail} (422 invalid_request)"


def test_another_server_is_quoted(make: Maker) -> None:
    for status, body, says in (
        (500, b"<h1>Oh no</h1>", "<h1>Oh no</h1>"),
        (404, b"", "an empty body"),
        (418, b"\xff\xfe", "�"),
        (400, b'{"detail": "something else"}', '{"detail": "something else"}'),
        (500, b"x" * 5000, "x" * 199 + "…"),
        *((200, body, "Is this the service?") for body in (b"", b"<html>", b"[]", b'{"hits": 1}', b'{"hits": []}')),
    ):
        error, asked = failure(make, AnswerError, answer(body, status))
        assert (error.status, error.kind, asked) == (status, "unexpected_answer", 1)
        assert error.detail.endswith(says)
    error, _ = failure(make, AnswerError, answer(b"", 308, location="https://search.example.org/"))
    assert "leads to 'https://search.example.org/'" in error.detail
    error, _ = failure(make, AnswerError, answer(b"no gzip", content_encoding="gzip"))
    assert "can't be decoded" in error.detail


def test_an_answer_of_any_size_is_not_read(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as it is sent nor unpacked: 64 MB of blanks are 64 kB of gzip."""
    monkeypatch.setattr("lightretriever.service.client.connection._MAX_ANSWER_BYTES", 8 << 20)
    packed = gzip.compress(b" " * (64 << 20))
    for step in (answer(b" " * (9 << 20)), answer(packed, content_encoding="gzip")):
        error, asked = failure(make, AnswerError, step)
        assert (error.kind, asked) == ("unexpected_answer", 1)
        assert "more than 8,388,608 bytes" in error.detail


TEXT = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
ADDRESSES = ("http://127.0.0.1:8080", "https://search.example.org/api")


def test_the_examples_run_from_top_to_bottom(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("queries.txt").write_text("play music\ntext editor\n")
    names: dict[str, object] = {}
    said = []
    for example in EXAMPLES:
        code = example.replace('"…"', '"a-key"').replace("timeout_s=5", "timeout_s=120")
        for address in ADDRESSES:
            code = code.replace(address, url)
        exec(compile(code, "docs/client.md", "exec"), names)
        said.append(capsys.readouterr().out)
    assert len(said) == 8
    assert len(said[0].splitlines()) == 5
    assert len(said[1].split()) == 2
    assert [line.count("'") for line in said[2].splitlines()] == [200, 200]
    assert said[4].startswith("422 invalid_request k: offset + k is 5000")
    assert [len(names[name]) for name in ("documents", "nodes")] == [5, 5]  # type: ignore[arg-type]


def test_the_calls_are_those_of_both_clients() -> None:
    documented = set(re.findall(r"^\| `(\w+)\(", TEXT, flags=re.MULTILINE))
    for client, closing in ((SearchClient, {"close"}), (AsyncSearchClient, {"aclose"})):
        public = {name for name, _ in inspect.getmembers(client, inspect.isfunction) if name[0] != "_"}
        assert public - closing - {"call", "send"} == documented


def test_what_errors_and_hits_tell_is_named() -> None:
    error = AnswerError.unexpected(500, "d")
    told = {name for name in vars(error) if name not in ("passing", "message", "remedy")}
    (row,) = re.findall(r"^\| `AnswerError` \|.*$", TEXT, flags=re.MULTILINE)
    assert {name for name in told if f"`{name}`" not in row} == set()
    assert [name for name in SCORES if f"`{name}`" not in TEXT] == []


WORDS = ("play music", "text editor", "chess games", "Ελληνικά", "parser")


def test_answers_to_many_come_in_the_order_of_the_queries(client: Client) -> None:
    alone = {word: [hit.id for hit in client.search(word, k=3).hits] for word in WORDS}
    for total, size in ((0, 3), (1, 3), (7, 3), (100, 16)):
        words = [WORDS[number % len(WORDS)] for number in range(total)]
        answers = client.search_many(iter(words), batch_size=size, k=3)
        assert [[hit.id for hit in answer.hits] for answer in answers] == [alone[word] for word in words]


def test_an_error_comes_where_its_answers_would(client: Client) -> None:
    """A batch is refused as a whole; those before it were answered. Places are counted over all queries."""
    queries: list[Query] = ["music"] * 7
    for bad, field in (({"query": "music", "task": "nope"}, "task"), ("", "query")):
        queries[4] = bad
        answers = client.search_many(queries, batch_size=2)
        for _ in range(4):
            assert next(answers).hits
        with raises(AnswerError, naming="invalid_request") as error:
            next(answers)
        assert [item.field for item in error.value.errors] == [f"searches.4.{field}"]
        assert next(answers, None) is None
    with raises(ClientError, naming="batch_size is 0"):
        next(client.search_many(queries, batch_size=0))


def test_no_more_is_read_than_is_asked_for_and_each_batch_is_tried_again(make: Maker) -> None:
    busy, three = problem(503, "overloaded", retry_after="0"), answer({"results": [FOUND] * 3})
    taken = count()
    with Scripted(busy, three, busy, busy, three) as server, make(server.url) as client:
        answers = client.search_many((f"music {number}" for number in taken), batch_size=3)
        for _ in range(4):
            next(answers)
        assert (next(taken), len(server.seen)) == (6, 5)
        answers.close()


WHOLE: dict[str, Any] = {"fields": NEW, "vector": np.full(16, 0.25, np.float32), "impacts": {"300": np.int64(5)}}
BODY = 20_000


@pytest.fixture(scope="module")
def writable(tiny_bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("documents")
    keys = keys_file(folder, *ENTRIES)
    served = live_bundles(tiny_bundle.path, live=folder / "live", api_keys_file=keys, max_body_bytes=BODY)
    with served as url:
        yield url


@pytest.fixture
def writer(make: Maker, writable: str) -> Iterator[Client]:
    with make(writable, api_key=KEY, timeout_s=120) as client:
        yield client


def lines(count: int, **more: Any) -> list[Fields]:
    return [{"id": f"line-{number}", **WHOLE, **more} for number in range(count)]


def test_what_became_of_each_is_told_in_order(writer: Client) -> None:
    (first,) = writer.put_documents([{"id": "a", **WHOLE}])
    changes: list[Fields] = [
        {"id": "b", **WHOLE},
        {"id": "a", "fields": {**NEW, "year": 3}, "version": first.version},
        {"id": "a", "fields": NEW, "version": first.version},
        {"id": "c", "fields": NEW},
        *[{"id": "b", "delete": True}] * 2,
    ]
    told = writer.put_documents(iter(changes), batch_size=2, wait=True)
    assert [(one.id, one.result) for one in told] == [
        *(("b", "created"), ("a", "changed"), ("a", "refused"), ("c", "refused"), ("b", "deleted"), ("b", "missing"))
    ]
    assert [one.reason is not None for one in told] == [False, False, True, True, False, False]
    assert "the document is new" in (told[3].reason or "")
    assert writer.document("a").version == told[1].version
    assert [one.result for one in writer.put_documents([{"id": "a", "delete": True}])] == ["deleted"]
    assert writer.put_documents([]) == []


def test_requests_have_a_bound_in_bytes(make: Maker) -> None:
    """So that documents of any length are written, each request below the service's `max_body_bytes`."""
    lengths = [100, 200_000, 200_000, 200_000, 900_000, *[10_000] * 100]
    given = [{"id": f"d{number}", "fields": {"text": "z" * length}} for number, length in enumerate(lengths)]
    with Scripted(written) as server, make(server.url) as client:
        told = client.put_documents(iter(given), wait=True)
        assert [change.id for change in told] == [line["id"] for line in given]
        bodies = [request["body"] for request in server.seen]
    assert [body.count(b"\n") + 1 for body in bodies] == [3, 1, 1, 32, 32, 32, 4]
    assert [len(body) > 1 << 19 for body in bodies] == [False, False, True, *[False] * 4]
    assert {request["path"] for request in server.seen} == {"/documents?refresh=wait_for"}
    assert {request["headers"]["content-type"] for request in server.seen} == {"application/x-ndjson"}


def test_an_error_names_the_document(writer: Client) -> None:
    """What earlier requests wrote is written."""
    fields: list[Fields] = [{"_id": "bad"}, {**NEW, "text": "z" * 1000 * BODY}]
    for bad in (
        *({"vector": [1.0]}, {"impacts": {"x": 5}}, {"fields": fields[0]}, {"fields": fields[1]}),
        *({"delete": True}, {"id": ""}, {"id": 17}, {"nope": 1}),
    ):
        with raises(AnswerError) as error:
            writer.put_documents([*lines(70), {"id": "bad", **WHOLE, **bad}])
        assert all(item.field.startswith("documents.") for item in error.value.errors)
        with raises(AnswerError, naming="document_not_found"):
            writer.document("bad")
        deleted = writer.put_documents([{"id": f"line-{number}", "delete": True} for number in range(70)])
        assert deleted[0].result == "deleted"


def written(handler: BaseHTTPRequestHandler) -> None:
    """Answer that all lines are written."""
    lines: list[bytes] = vars(handler)["body"].split(b"\n")
    ids = [json.loads(line)["id"] for line in lines]
    answer({"results": [{"id": name, "result": "changed", "version": "1"} for name in ids]})(handler)


def test_what_names_a_version_is_sent_once(make: Maker) -> None:
    """The first attempt may have been made, and the second one would find its version."""
    versioned: list[Fields] = [*lines(1), {"id": "b", "fields": NEW, "version": "1.1"}]
    with Scripted(problem(503, "write_failed"), written) as server, make(server.url) as client:
        with raises(AnswerError, naming="write_failed"):
            client.put_documents(versioned)
        assert len(server.seen) == 1
    with Scripted(problem(503, "write_failed"), written) as server, make(server.url) as client:
        assert len(client.put_documents(lines(2))) == 2
        assert len(server.seen) == 2
