"""Traces: one span per request and one per stage, at their true times, below the caller's, and nothing when off."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import time_ns

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id
from starlette.testclient import TestClient

from lightretriever.service.errors import SettingsError
from lightretriever.service.http.app import create_app
from lightretriever.service.http.tracing import Tracing
from lightretriever.service.search.engine import SearchEngine
from tests.client.scripted import Scripted, answer
from tests.service.process import Server
from tests.support.wordings import raises

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


def test_the_caller_s_trace_goes_on(
    traced: TestClient, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_a_traceparent_that_is_none_begins_a_trace_and_who_wants_none_gets_none(
    traced: TestClient, exporter: InMemorySpanExporter
) -> None:
    for given in ("", "nonsense", f"00-{'0' * 32}-{PARENT}-01", "ÿ", TRACEPARENT + "x" * 5000):
        assert traced.get("/livez", headers={b"traceparent": given.encode("latin-1")}).status_code == 200
        whole, _ = spans(exporter)
        assert whole.parent is None
        assert format_trace_id(whole.context.trace_id) not in (TRACE, "0" * 32)
        exporter.clear()
    assert traced.get("/livez", headers={"traceparent": TRACEPARENT[:-1] + "0"}).status_code == 200
    assert exporter.get_finished_spans() == ()


def test_every_search_of_a_batch_has_its_stages(traced: TestClient, exporter: InMemorySpanExporter) -> None:
    traced.post("/search/batch", json={"searches": [{"query": "a"}, {"query": "b", "mode": "sparse"}]})
    _, stages = spans(exporter)
    names = [stage.name for stage in stages]
    assert [names.count(name) for name in ("tokenize", "encode", "dense", "sparse", "fetch")] == [2, 1, 1, 2, 2]


def test_errors_of_the_service_are_errors_of_the_span(
    traced: TestClient, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
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
