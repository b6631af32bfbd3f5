"""Middleware for every request: request id, security headers, metric, log line, and a problem for a crash."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from lightretriever.service.http.access import client_address
from lightretriever.service.http.access_log import CLIENT_CLOSED, RequestRecord, refusal
from lightretriever.service.http.json import header
from lightretriever.service.observability.metrics import Metrics
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from lightretriever.service.http.tracing import Trace, Tracing

__all__ = ["Envelope"]


class Envelope:
    """ASGI middleware. It calls `metrics` and `tracing` (None: no traces) per request, since the engine opens after
    the app is made."""

    def __init__(
        self,
        app: ASGIApp,
        metrics: Callable[[], Metrics],
        tracing: "Callable[[], Tracing | None]" = lambda: None,
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        method = scope["method"]
        if method == "HEAD":
            # Answer as for GET. In a copy: the server's own scope tells it to send no body.
            scope = {**scope, "method": "GET"}
        record = RequestRecord(method, scope["path"], header(scope, b"x-request-id"))
        trace = self._begin_trace(scope, method, record)
        record.about["client"] = client_address((scope.get("client") or (None,))[0])
        # What the engine wants to know of the time.
        when = {"arrived": record.arrived, "marks": None if trace is None else trace.marks}
        scope.setdefault("state", {}).update(when=when, request_id=record.request_id, about=record.about)
        metrics = self._metrics()
        metrics.in_flight.inc()
        answer = _Answer(record, send, bodiless=method == "HEAD")
        try:
            await self._app(scope, receive, answer)
        except ClientDisconnect:
            record.status = CLIENT_CLOSED
        except asyncio.CancelledError:
            record.status = CLIENT_CLOSED
            raise
        except Exception as error:
            sorry = record.failed(error)
            if record.status:
                raise  # part of the answer was sent: the server must close the connection
            response = refusal(sorry, metrics, scope["path"], record.request_id)
            await response(scope, receive, answer)
        finally:
            metrics.in_flight.dec()
            route = getattr(scope.get("route"), "path", "unknown")
            record.close(route, metrics)
            if trace is not None:
                trace.end(method, route, record.status)

    def _begin_trace(self, scope: Scope, method: str, record: RequestRecord) -> "Trace | None":
        tracing = self._tracing()
        if tracing is None:
            return None
        trace = tracing.begin(scope, method, record.arrived, record.request_id)
        record.about["trace_id"] = trace.id
        return trace


class _Answer:
    """Forwards messages, adds the headers to the answer's start, and drops the body if `bodiless`."""

    def __init__(self, record: RequestRecord, send: Send, *, bodiless: bool) -> None:
        self._record = record
        self._send = send
        self._bodiless = bodiless

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._record.begin_answer(message["status"])
            message = {**message, "headers": self._record.headers(message["headers"])}
        elif self._bodiless:
            message = {**message, "body": b""}
        await self._send(message)
