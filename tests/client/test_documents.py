"""Many documents at once, with both clients: a real service with a journal, and one that does as it is told."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.client import AnswerError
from lightretriever.service.client.calls import Fields
from tests.client.both import Client, Maker
from tests.client.scripted import Scripted, answer, problem
from tests.service.live import live_bundles
from tests.support.keys import keys_file
from tests.support.wordings import raises
from tests.support.written import ENTRIES, KEY, NEW

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
        {"id": "b", "delete": True},
        {"id": "b", "delete": True},
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
    for bad in (
        {"vector": [1.0]},
        {"impacts": {"x": 5}},
        {"fields": {"_id": "bad"}},
        {"delete": True},
        {"id": ""},
        {"id": 17},
        {"fields": {**NEW, "text": "z" * 1000 * BODY}},
        {"nope": 1},
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
