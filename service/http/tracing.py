"""OpenTelemetry traces: a span for each request, with a child for each stage, at their true start and end times.

Imported only if the environment names a collector. The stages' spans are made after the request, from the times
that its clock recorded, so the search itself only appends to a list.
"""

from time import perf_counter, time_ns
from typing import Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import Scope

from lightretriever.artifacts.bundle.software import package_version
from lightretriever.service.observability.metrics import Mark

_NAME: Final = "lightretriever"
_FLUSH_MS: Final = 2_000
_EXPORT_TIMEOUT_S: Final = 2.0
_FAILED: Final = 500


class Tracing:
    """Makes the spans of one process."""

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        """Pass the spans to `processor`. None: to the collector that OpenTelemetry's variables name, by a thread."""
        attributes = {SERVICE_NAME: _NAME, SERVICE_VERSION: package_version("lightretriever-search") or "not installed"}
        self._provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
        processor = processor or BatchSpanProcessor(OTLPSpanExporter(timeout=_EXPORT_TIMEOUT_S))
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("service")
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, scope: Scope, method: str, arrived: float, request_id: str) -> "Trace":
        """Start the span of a request that arrived at the `perf_counter` time `arrived`, as a child of its caller's."""
        # `perf_counter` has an arbitrary origin; spans need the time of day.
        offset = time_ns() - round(perf_counter() * 1e9)
        span = self._tracer.start_span(
            method,
            context=self._propagator.extract(Headers(scope=scope)),
            kind=trace.SpanKind.SERVER,
            attributes={"http.request.method": method, "url.path": scope["path"], "request.id": request_id},
            start_time=offset + round(arrived * 1e9),
        )
        return Trace(self._tracer, span, offset)

    def close(self) -> None:
        """Send the remaining spans, for at most 2 seconds."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()


class Trace:
    """The span of a running request."""

    __slots__ = ("_offset", "_span", "_tracer", "id", "marks")

    def __init__(self, tracer: trace.Tracer, span: trace.Span, offset: int) -> None:
        self._tracer = tracer
        self._span = span
        self._offset = offset
        self.id = trace.format_trace_id(span.get_span_context().trace_id)
        """32 hexadecimal digits."""
        self.marks: list[Mark] = []
        """Start and end of each stage."""

    def end(self, method: str, route: str, status: int) -> None:
        """End the request's span, and make its stages' spans."""
        span = self._span
        if not span.is_recording():
            return
        below = trace.set_span_in_context(span)
        for stage, began, ended in self.marks:
            child = self._tracer.start_span(stage, context=below, start_time=self._at(began))
            child.end(self._at(ended))
        span.update_name(f"{method} {route}")
        span.set_attributes({"http.route": route, "http.response.status_code": status})
        if status >= _FAILED:
            span.set_status(trace.StatusCode.ERROR)
        span.end()

    def _at(self, moment: float) -> int:
        return self._offset + round(moment * 1e9)
