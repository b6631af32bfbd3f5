"""The envelope of every answer: requests that end without one, HEAD, and slow bodies."""

import asyncio
import threading
from typing import Any

import httpx2
import orjson
import pytest
from fastapi.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from lightretriever.service.http.app import create_app
from lightretriever.service.http.middleware import Envelope
from lightretriever.service.observability.metrics import Metrics
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine


def http_scope(path: str, method: str = "GET") -> Scope:
    return {"type": "http", "method": method, "path": path, "headers": [(b"content-type", b"application/json")]}


def observed(metrics: Metrics, route: str, status: str) -> tuple[float, float]:
    labels = {"route": route, "status": status}
    count, seconds = (
        metrics.registry.get_sample_value(f"lightretriever_request_seconds_{name}", labels) or 0.0
        for name in ("count", "sum")
    )
    return count, seconds


async def never(message: Message) -> None:
    """Fail, as nothing is to be sent."""
    raise AssertionError(message)


def test_a_cancelled_request_is_recorded_with_the_time_it_took() -> None:
    metrics = Metrics()

    entered = asyncio.Event()

    async def forever(scope: Scope, receive: Receive, send: Send) -> None:
        entered.set()
        await asyncio.Event().wait()

    async def receive() -> Message:
        raise AssertionError

    async def cancel() -> None:
        task = asyncio.create_task(Envelope(forever, lambda: metrics)(http_scope("/a"), receive, never))
        await entered.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    count, seconds = observed(metrics, "unknown", "499")
    assert count == 1
    assert seconds >= 0.015


def test_a_client_that_leaves_while_it_sends_is_recorded_too(engine: SearchEngine) -> None:
    app = create_app(engine)
    before = observed(engine.metrics, "/search", "499")[0]

    async def leave() -> Message:
        return {"type": "http.disconnect"}

    with TestClient(app):
        asyncio.run(app({**http_scope("/search", "POST"), "query_string": b""}, leave, never))
    assert observed(engine.metrics, "/search", "499")[0] == before + 1


@pytest.mark.parametrize("path", ["/", "/livez", "/readyz", "/info", "/documents/music", "/documents/nix"])
def test_head_is_get_without_the_body(url: str, path: str) -> None:
    whole, head = httpx2.get(url + path, timeout=60), httpx2.head(url + path, timeout=60)
    assert head.status_code == whole.status_code
    assert head.content == b""
    assert head.headers["content-type"] == whole.headers["content-type"]
    # The body of an error has a random id, but its length is fixed.
    assert head.headers["content-length"] == whole.headers["content-length"]


def test_head_where_there_is_no_get(client: TestClient) -> None:
    answer = client.head("/encode")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the threads that write answers."""
    names: list[str] = []
    write = orjson.dumps

    def note(answer: Any, **how: Any) -> bytes:
        if "hits" in answer:
            names.append(threading.current_thread().name)
        return write(answer, **how)

    monkeypatch.setattr(orjson, "dumps", note)
    return names


def test_answers_are_written_in_a_worker_thread(client: TestClient, writers: list[str]) -> None:
    client.post("/search", json=SearchRequest(query="music").model_dump())
    assert [name.partition("_")[0] for name in writers] == ["requests"]


def test_a_line_tells_of_each_request_and_cuts_long_paths(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    answers = [client.get("/livez"), client.get("/" + "x" * 10_000), client.post("/search", content=b"{")]
    found = [vars(record) for record in caplog.records if record.name == "lightretriever.access"]
    assert [(line["method"], line["path"], line["status"]) for line in found] == [
        ("GET", "/livez", 200),
        ("GET", "/" + "x" * 198 + "…", 404),
        ("POST", "/search", 415),
    ]
    assert [line["request_id"] for line in found] == [answer.headers["x-request-id"] for answer in answers]
    assert all(line["ms"] > 0 and line["levelname"] == "INFO" and line["msg"] == "request" for line in found)
