"""OpenTelemetry traces: a span for each request, with a child for each stage, at their true start and end times.

Imported only if the environment names a collector. Spans are made after the request, from the times that its clock
recorded, so the search itself only appends to a list.
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

from lightretriever.artifacts.reports import package_version
from lightretriever.service.observability.metrics import StageClock

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

    def record(self, scope: Scope, clock: StageClock, route: str, status: int) -> str:
        """Make the spans of a request that ends now, below its caller's span. Return the id of the trace, 32
        hexadecimal digits."""
        # `perf_counter` has an arbitrary origin; spans need the time of day.
        offset = time_ns() - round(perf_counter() * 1e9)
        attributes = {
            "http.request.method": scope["method"],
            "url.path": scope["path"],
            "request.id": scope["state"]["request_id"],
            "http.route": route,
            "http.response.status_code": status,
        }
        span = self._tracer.start_span(
            f"{scope['method']} {route}",
            context=self._propagator.extract(Headers(scope=scope)),
            kind=trace.SpanKind.SERVER,
            attributes=attributes,
            start_time=offset + round(clock.arrived * 1e9),
        )
        if span.is_recording():
            below = trace.set_span_in_context(span)
            for stage, began, ended in clock.marks or ():
                child = self._tracer.start_span(stage, context=below, start_time=offset + round(began * 1e9))
                child.end(offset + round(ended * 1e9))
            if status >= _FAILED:
                span.set_status(trace.StatusCode.ERROR)
            span.end()
        return trace.format_trace_id(span.get_span_context().trace_id)

    def close(self) -> None:
        """Send the remaining spans, for at most 2 seconds."""
        self._provider.force_flush(_FLUSH_MS)
        self._provider.shutdown()
