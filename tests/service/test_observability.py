"""What the service tells of itself: metrics, lines of the log as JSON, the envelope of answers, and traces with a span
for each request and stage, at their true times, below the caller's."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from time import time_ns
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.service.errors import SettingsError
from lightretriever.service.http.app import Application, create_app
from lightretriever.service.http.tracing import Tracing
from lightretriever.service.observability.logging import configure_logging
from lightretriever.service.observability.metrics import Metrics
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.client.scripted import Scripted, answer
from tests.service.live import client_of_folder
from tests.service.process import Server
from tests.support.asking import samples
from tests.support.waiting import wait_until
from tests.support.wordings import raises

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
    counts = {stage: found["stage_seconds_count", backends.get(stage, ""), stage] for stage in STAGES - {"fetch"}}
    assert counts == {"tokenize": 7, "encode": 5, "dense": 5, "sparse": 6, "rescore": 4, "fuse": 7}
    assert found["search_seconds_count",] == 7
    assert found["stage_seconds_bucket", "", "+Inf", "tokenize"] == 7
    assert 0 < found["stage_seconds_sum", "", "tokenize"] < found["search_seconds_sum",]
    assert min(float(key[2]) for key in found if key[0] == "stage_seconds_bucket") == 1e-5


def test_requests_and_errors_count(fresh_client: TestClient) -> None:
    before = samples(fresh_client.get("/metrics").text)
    assert (before["ready",], before["requests_in_flight",], before["process_open_fds",] > 0) == (1, 1, True)
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
    LOG.error("failed", exc_info=ValueError("no\nsuch thing"))
    line, failed = (json.loads(text) for text in written.getvalue().splitlines())
    assert line.pop("timestamp").endswith("Z")
    about = {"event": "one of 2", "level": "info", "logger": "a.test"}
    assert line == about | {"leg": "dense", "odd": "{1}", "none": None}
    assert (failed["level"], failed["exception"]) == ("error", "ValueError: no\nsuch thing")


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


def test_a_cancelled_request_is_recorded() -> None:
    metrics, entered = Metrics(), asyncio.Event()

    async def forever(*_: object) -> Any:
        entered.set()
        await asyncio.Event().wait()

    async def cancel() -> None:
        state: Any = SimpleNamespace(collections=SimpleNamespace(first=SimpleNamespace(metrics=metrics)), tracing=None)
        scope = {"type": "http", "method": "GET", "path": "/a", "headers": []}
        task = asyncio.create_task(Application(forever, state)(scope, forever, forever))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert samples(metrics.text().decode())["request_seconds_count", "unknown", "499"] == 1


TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
STAGES = {"tokenize", "encode", "dense", "sparse", "rescore", "fuse", "fetch"}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(engine: SearchEngine, exporter: InMemorySpanExporter) -> Iterator[TestClient]:
    app = create_app(engine)
    app.state.tracing = Tracing(SimpleSpanProcessor(exporter))
    with TestClient(app) as client:
        yield client


def spans(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """The span of the one request, and those of its stages in the order of their beginnings."""
    (whole,) = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER]
    stages = [span for span in exporter.get_finished_spans() if span.kind is not SpanKind.SERVER]
    for stage in stages:
        assert stage.parent is not None
        assert stage.parent.span_id == whole.context.span_id
        assert stage.context.trace_id == whole.context.trace_id
    return whole, sorted(stages, key=lambda span: span.start_time or 0)


def test_a_search_is_a_span_with_its_stages_at_their_times(traced: TestClient, exporter: InMemorySpanExporter) -> None:
    before = time_ns()
    answer = traced.post("/search", json={"query": "play music", "candidates": 10}, headers={"x-request-id": "abc"})
    after = time_ns()
    whole, stages = spans(exporter)
    assert whole.name == "POST /search"
    about = {"http.request.method": "POST", "url.path": "/search", "request.id": "abc", "http.route": "/search"}
    assert whole.attributes == about | {"http.response.status_code": 200}
    assert {stage.name for stage in stages} == STAGES
    timings = answer.json()["timings_ms"]
    for name in ("tokenize", "encode", "dense", "sparse", "fetch"):
        (stage,) = [span for span in stages if span.name == name]
        assert ((stage.end_time or 0) - (stage.start_time or 0)) / 1e6 == pytest.approx(timings[name], abs=2e-4)
    for stage in stages:
        assert (whole.start_time or 0) <= (stage.start_time or 0) <= (stage.end_time or 0) <= (whole.end_time or 0)
    # A clock of the day and one that only counts drift apart by microseconds; a mistake would be of another size.
    assert before - 10**7 <= (whole.start_time or 0) <= (whole.end_time or 0) <= after + 10**7
    exporter.clear()
    traced.post("/search/batch", json={"searches": [{"query": "a"}, {"query": "b", "mode": "sparse"}]})
    names = [stage.name for stage in spans(exporter)[1]]
    assert [names.count(name) for name in ("tokenize", "encode", "dense", "sparse", "fetch")] == [2, 1, 1, 2, 2]


def test_a_trace_goes_on(traced: TestClient, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    traced.get("/documents/music", headers={"traceparent": TRACEPARENT, "tracestate": "vendor=1"})
    whole, stages = spans(exporter)
    assert format_trace_id(whole.context.trace_id) == TRACE
    assert whole.parent is not None
    assert format_span_id(whole.parent.span_id) == PARENT
    assert whole.context.trace_state.get("vendor") == "1"
    assert [stage.name for stage in stages] == ["fetch"]
    (line,) = [vars(record) for record in caplog.records if record.name == "lightretriever.access"]
    assert line["trace_id"] == TRACE


def test_what_is_no_traceparent_begins_a_trace(traced: TestClient, exporter: InMemorySpanExporter) -> None:
    for given in ("", "nonsense", f"00-{'0' * 32}-{PARENT}-01", "ÿ", TRACEPARENT + "x" * 5000):
        assert traced.get("/livez", headers={b"traceparent": given.encode("latin-1")}).status_code == 200
        whole, _ = spans(exporter)
        assert whole.parent is None
        assert format_trace_id(whole.context.trace_id) not in (TRACE, "0" * 32)
        exporter.clear()
    assert traced.get("/livez", headers={"traceparent": TRACEPARENT[:-1] + "0"}).status_code == 200
    assert exporter.get_finished_spans() == ()


def test_errors_of_a_span(traced: TestClient, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    assert traced.post("/search", json={}).status_code == 422
    whole, _ = spans(exporter)
    assert whole.status.status_code is StatusCode.UNSET
    exporter.clear()
    monkeypatch.setattr(SearchEngine, "answer", lambda *_, **__: 1 / 0)
    assert traced.post("/search", json={"query": "a"}).status_code == 500
    whole, _ = spans(exporter)
    assert whole.status.status_code is StatusCode.ERROR
    exporter.clear()
    traced.get("/a/path/nobody/knows")
    assert spans(exporter)[0].name == "GET unknown"


def test_a_collector_gets_them_at_the_latest_when_the_service_stops(tiny_path: Path) -> None:
    with Scripted(answer(b"")) as collector:
        environment = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces"}
        with Server(tiny_path, environment=environment) as server:
            url = server.url
            assert httpx2.post(f"{url}/search", json={"query": "music"}, timeout=60).status_code == 200
            code, _, errors = server.stop()
    assert code == 0
    sent = [ExportTraceServiceRequest.FromString(request["body"]) for request in collector.seen]
    resources = [resource for one in sent for resource in one.resource_spans]
    names = {span.name for resource in resources for scope in resource.scope_spans for span in scope.spans}
    assert {"POST /search", *STAGES - {"rescore"}} <= names
    assert all("lightretriever" in str(resource.resource) for resource in resources)
    (line,) = [json.loads(line) for line in errors.splitlines() if '"/search"' in line]
    assert len(line["trace_id"]) == 32


def test_missing_packages_are_named(engine: SearchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lightretriever.service.http.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    with raises(SettingsError, naming="OTEL_EXPORTER_OTLP_ENDPOINT"):
        create_app(engine)
