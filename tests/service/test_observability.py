"""What the service tells of itself: metrics that count what happened and nothing else, lines of the log as JSON, a line
for each request, and the envelope of answers."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.http.middleware import Application
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.observability.metrics import Metrics
from lightretriever.service.settings import Settings
from tests.service.live import client_of_folder
from tests.support.asking import samples
from tests.support.waiting import wait_until

STAGES = ("tokenize", "encode", "dense", "sparse", "rescore", "fuse")
LOG = logging.getLogger("a.test")


@pytest.fixture
def fresh_client(tiny_bundle: Bundle) -> Iterator[TestClient]:
    with client_of_folder(tiny_bundle.path, Settings(deadline_ms=60_000, warm_up_queries=2)) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200)
        yield client


def test_searches_are_timed_by_stage_and_the_warm_up_is_not_among_them(fresh_client: TestClient) -> None:
    for mode, count in (("hybrid", 3), ("sparse", 2)):
        for _ in range(count):
            assert fresh_client.post("/search", json={"query": "music", "mode": mode}).status_code == 200
    fresh_client.post("/search/batch", json={"searches": [{"query": "a"}, {"query": "b", "mode": "dense"}]})
    found = samples(fresh_client.get("/metrics").text)
    backends = {"dense": "faiss", "sparse": "lucene"}
    counts = {stage: found["stage_seconds_count", backends.get(stage, ""), stage] for stage in STAGES}
    assert counts == {"tokenize": 7, "encode": 5, "dense": 5, "sparse": 6, "rescore": 4, "fuse": 7}
    assert found["search_seconds_count",] == 7
    assert found["stage_seconds_bucket", "", "+Inf", "tokenize"] == 7
    assert 0 < found["stage_seconds_sum", "", "tokenize"] < found["search_seconds_sum",]
    assert min(float(key[2]) for key in found if key[0] == "stage_seconds_bucket") == 1e-5


def test_gauges_tell_the_state_and_requests_and_errors_count(fresh_client: TestClient, tiny_bundle: Bundle) -> None:
    """Requests by route and status, errors by kind."""
    before = samples(fresh_client.get("/metrics").text)
    assert (before["ready",], before["requests_in_flight",], before["documents",]) == (1, 1, 120)
    assert {key[1] for key in before if key[0] == "abandoned_calls"} == {"requests", "dense"}
    (labels,) = (key[1:] for key in before if key[0] == "bundle_info")
    assert tiny_bundle.manifest.digest in labels
    assert before["process_open_fds",] > 0
    fresh_client.post("/search", json={"query": "a"})
    fresh_client.post("/search", json={"query": ""})
    fresh_client.post("/search", content=b"{", headers={"content-type": "application/json"})
    for path in ("/documents/music", "/documents/nix", "/a/path/nobody/knows", "/encode"):
        fresh_client.get(path)
    found = samples(fresh_client.get("/metrics").text)
    kinds = ("invalid_request", "invalid_body", "document_not_found", "not_found", "method_not_allowed")
    assert {key[1]: value for key, value in found.items() if key[0] == "errors_total"} == {
        **{key[1]: value for key, value in before.items() if key[0] == "errors_total"},
        **dict.fromkeys(kinds, 1),
    }
    requests = {key[1:]: value for key, value in found.items() if key[0] == "request_seconds_count"}
    assert requests["/search", "200"] == requests["/search", "422"] == requests["/search", "400"] == 1
    assert requests["/documents/{id:any}", "200"] == requests["/documents/{id:any}", "404"] == 1
    assert requests["unknown", "404"] == 1
    assert not any("nobody" in label for labels in requests for label in labels)


@pytest.fixture
def written(unconfigured: None, monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """What is logged, by the service's own configuration."""
    stream = StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    for name in ("logThreads", "logProcesses", "logMultiprocessing"):
        monkeypatch.setattr(logging, name, True)
    configure_logging("info")
    return stream


def test_a_line_has_the_event_what_was_given_beside_it_and_the_error(written: StringIO) -> None:
    LOG.info("%s of %d", "one", 2, extra={"leg": "dense", "odd": {1}, "none": None})
    LOG.debug("below the level")
    LOG.error("failed", exc_info=ValueError("no\nsuch thing"), stack_info=True)
    line, failed = (json.loads(text) for text in written.getvalue().splitlines())
    assert line.pop("timestamp").endswith("Z")
    about = {"event": "one of 2", "level": "info", "logger": "a.test"}
    assert line == about | {"leg": "dense", "odd": "{1}", "none": None}
    assert (failed["level"], failed["exception"]) == ("error", "ValueError: no\nsuch thing")
    assert "test_a_line_has_the_event" in failed["stack_info"]


def test_no_character_reaches_a_terminal_that_it_would_obey(written: StringIO) -> None:
    text = "a\x1b[2J\x9b2J\x85\u2028b\u202egpj.exe\u2066\ufeff\u200b\x7f ü 漢 🎉"
    LOG.info("here", extra={"path": text})
    raw = written.getvalue().rstrip("\n")
    assert raw.isprintable()
    assert "ü 漢 🎉" in raw
    assert json.loads(raw)["path"] == text


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


def test_a_cancelled_request_is_recorded_with_the_time_it_took() -> None:
    metrics, entered = Metrics(), asyncio.Event()

    async def forever(*_: object) -> None:
        entered.set()
        await asyncio.Event().wait()

    async def never(_: object = None) -> Any:
        raise AssertionError("nothing is to be sent or received")

    async def cancel() -> None:
        state: Any = SimpleNamespace(collections=SimpleNamespace(metrics=metrics, first=None), tracing=None)
        scope = {"type": "http", "method": "GET", "path": "/a", "headers": []}
        task = asyncio.create_task(Application(forever, state)(scope, never, never))
        await entered.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    found = samples(metrics.text().decode())
    assert found["request_seconds_count", "unknown", "499"] == 1
    assert found["request_seconds_sum", "unknown", "499"] >= 0.015
