"""Many documents at once, with both clients: a real service with a journal, and one that does as it is told."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import AnswerError, AsyncSearchClient, ClientError, Retries
from lightretriever.service.client.calls import Line
from lightretriever.service.schemas import DocumentLine
from tests.client.both import Client, Maker
from tests.client.scripted import Scripted, Step, answer, problem
from tests.service.live import live_bundles
from tests.support.keys import keys_file
from tests.support.wordings import raises
from tests.support.written import ENTRIES, KEY, NEW, READER

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


def lines(count: int, **more: Any) -> list[Line]:
    return [{"id": f"line-{number}", **WHOLE, **more} for number in range(count)]


def test_what_became_of_each_is_told_in_order(writer: Client) -> None:
    (first,) = writer.put_documents([DocumentLine(id="a", **WHOLE | {"vector": [1.0] * 16, "impacts": {"300": 5}})])
    changes: list[Line] = [
        {"id": "b", **WHOLE},
        {"id": "a", "fields": {**NEW, "year": 3}, "version": first.version},
        {"id": "a", "fields": NEW, "version": first.version},
        {"id": "c", "fields": NEW},
        {"id": "b", "delete": True},
        DocumentLine(id="b", delete=True),
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


def test_requests_that_are_too_large_are_made_smaller(writer: Client) -> None:
    count = 100
    given = lines(count, fields={**NEW, "text": "zebra " * (2 * BODY // count)})
    told = writer.put_documents(given, batch_size=count)
    assert [(one.id, one.result) for one in told] == [(f"line-{number}", "created") for number in range(count)]
    gone = writer.put_documents(({"id": one.id, "delete": True} for one in told), batch_size=7)
    assert {one.result for one in gone} == {"deleted"}


@pytest.mark.parametrize(
    "bad",
    [
        {"vector": [1.0]},
        {"impacts": {"x": 5}},
        {"fields": {"_id": "bad"}},
        {"delete": True},
        {"id": ""},
        {"fields": {**NEW, "text": "z" * 1000 * BODY}},
        {"fields": {**NEW, "text": "\ud800"}},
        {"nope": 1},
    ],
)
def test_an_error_names_the_document(writer: Client, bad: dict[str, Any]) -> None:
    """What earlier requests wrote is written."""
    given = lines(70)
    with raises(AnswerError) as error:
        writer.put_documents([*given, {"id": "bad", **WHOLE, **bad}])
    assert all(item.field.startswith("documents.") for item in error.value.errors)
    assert {one.result for one in writer.put_documents([{"id": "line-0", "delete": True}])} == {"deleted"}
    with raises(AnswerError, naming="document_not_found"):
        writer.document("bad")
    writer.put_documents([{"id": f"line-{number}", "delete": True} for number in range(70)])


def test_who_may_not_write_is_told_so(make: Maker, writable: str) -> None:
    for key, status in ((READER, 403), (None, 401)):
        with make(writable, api_key=key) as client, raises(AnswerError) as error:
            client.put_documents(lines(1))
        assert error.value.status == status


def in_time(most: int) -> Step:
    """Answer up to `most` lines; more are too late."""

    def step(handler: BaseHTTPRequestHandler) -> None:
        body: bytes = vars(handler)["body"]
        ids = [json.loads(line)["id"] for line in body.split(b"\n")]
        told = {"results": [{"id": one, "result": "changed", "version": "1"} for one in ids]}
        (problem(504, "deadline_exceeded") if len(ids) > most else answer(told))(handler)

    return step


def test_requests_that_are_too_late_are_made_smaller(make: Maker) -> None:
    with Scripted(in_time(5)) as server, make(server.url) as client:
        told = client.put_documents(lines(40), wait=True)
        assert [one.id for one in told] == [f"line-{number}" for number in range(40)]
        counts = [request["body"].count(b"\n") + 1 for request in server.seen]
    assert counts == [32, 16, 8, *[4] * 10]
    assert {request["path"] for request in server.seen} == {"/documents?refresh=wait_for"}
    assert {request["headers"]["content-type"] for request in server.seen} == {"application/x-ndjson"}
    with Scripted(in_time(0)) as server, make(server.url) as client, raises(AnswerError, naming="documents.line-0"):
        client.put_documents(lines(2))


def test_what_names_a_version_is_sent_once(make: Maker) -> None:
    """The first attempt may have been made, and the second one would find its version."""
    retries = Retries(first_wait_s=0.001)
    versioned: list[Line] = [*lines(1), {"id": "b", "fields": NEW, "version": "1.1"}]
    for step in (problem(503, "write_failed"), problem(504, "deadline_exceeded")):
        with Scripted(step) as server, make(server.url, retries=retries) as client:
            with pytest.raises(AnswerError):
                client.put_documents(versioned)
            assert len(server.seen) == 1
    with Scripted(problem(503, "write_failed"), in_time(9)) as server, make(server.url, retries=retries) as client:
        assert len(client.put_documents(lines(2))) == 2
        assert len(server.seen) == 2


def test_a_size_that_makes_no_sense_is_refused(writer: Client) -> None:
    with raises(ClientError, naming="batch_size"):
        writer.put_documents(lines(1), batch_size=0)


def test_the_async_one_takes_an_async_source(writable: str) -> None:
    async def source() -> AsyncIterator[Line]:
        for line in lines(3):
            yield line

    async def use() -> list[str]:
        async with AsyncSearchClient(writable, api_key=KEY, timeout_s=120) as client:
            told = await client.put_documents(source(), batch_size=2)
            gone = await client.put_documents([{"id": one.id, "delete": True} for one in told])
            return [one.result for one in (*told, *gone)]

    assert asyncio.run(use()) == [*["created"] * 3, *["deleted"] * 3]
