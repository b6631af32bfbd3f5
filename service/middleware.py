"""What every answer gets: a request id, security headers, a metric, a log line, and a problem instead of a crash."""

import asyncio
import logging
import random
import re
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import InternalError, shortened
from service.http import problem_response
from service.telemetry import Metrics

if TYPE_CHECKING:
    from service.tracing import Tracing

__all__ = ["Envelope"]

_log = logging.getLogger("lightretriever.access")

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_CLIENT_CLOSED: Final = 499  # nginx's number for a client that left
_LONGEST_PATH: Final = 200
_CSP: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")


class Envelope:
    """ASGI middleware. `metrics` is called per request, because the engine opens after the app is made; so is
    `tracing`, which gives None where no traces are wanted."""

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
            # The same answer without its body. A copy, because the server's own scope tells it to send none.
            scope = {**scope, "method": "GET"}
        exchange = _Exchange(scope, send, method, self._tracing())
        metrics = self._metrics()
        metrics.in_flight.inc()
        try:
            await self._app(scope, receive, exchange.send)
        except ClientDisconnect:
            exchange.status = _CLIENT_CLOSED
        except asyncio.CancelledError:
            exchange.status = _CLIENT_CLOSED
            raise
        except Exception as error:
            _log.exception("request failed", extra={"request_id": exchange.request_id, "error": type(error).__name__})
            if exchange.status:
                raise  # half of an answer is out: the server must cut the connection
            metrics.errors.labels(InternalError.kind).inc()
            sorry = InternalError("The reason is in the log, under this request id.")
            answer = problem_response(sorry, instance=scope["path"], request_id=exchange.request_id)
            await answer(scope, receive, exchange.send)
        finally:
            metrics.in_flight.dec()
            metrics.request(exchange.route(), exchange.status).observe(exchange.end())
            exchange.log()
            exchange.end_trace()


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, send: Send, method: str, tracing: "Tracing | None") -> None:
        self.status = 0
        self.seconds: float | None = None
        self._scope = scope
        self._method = method
        self._send = send
        self._arrived = perf_counter()
        given = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        # It tells requests apart, and need not be hard to guess.
        self.request_id = given if _REQUEST_ID.fullmatch(given) else f"{random.getrandbits(64):016x}"
        self._trace = None if tracing is None else tracing.begin(scope, method, self._arrived, self.request_id)
        # What the engine wants to know of the time.
        when = {"arrived": self._arrived, "marks": None if self._trace is None else self._trace.marks}
        scope.setdefault("state", {}).update(when=when, request_id=self.request_id)

    async def send(self, message: Message) -> None:
        """Pass a message on, adding the headers to the answer's start."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.end()
            headers = [*message["headers"], *_HEADERS, (b"x-request-id", self.request_id.encode())]
            if _CSP[0] not in dict(headers):
                headers.append(_CSP)
            message = {**message, "headers": headers}
        elif self._method == "HEAD":
            message = {**message, "body": b""}
        await self._send(message)

    def end(self) -> float:
        """Give the seconds until the answer began, or until now, when the request was given up without one."""
        if self.seconds is None:
            self.seconds = perf_counter() - self._arrived
        return self.seconds

    def route(self) -> str:
        """Give the route's pattern: a path itself could be anything, and would make a metric of its own."""
        return getattr(self._scope.get("route"), "path", "unknown")

    def log(self) -> None:
        """Write the access line. The query is in the body and stays out of it."""
        if not _log.isEnabledFor(logging.INFO):
            return
        # Made here, because the logger would look through the stack for who logs.
        record = logging.LogRecord(_log.name, logging.INFO, __file__, 0, "request", None, None)
        vars(record).update(
            request_id=self.request_id,
            method=self._method,
            path=shortened(self._scope["path"], _LONGEST_PATH),
            status=self.status,
            ms=round(self.end() * 1e3, 3),
        )
        if self._trace is not None:
            vars(record)["trace_id"] = self._trace.id
        _log.handle(record)

    def end_trace(self) -> None:
        """Hand the trace over, if there is one."""
        if self._trace is not None:
            self._trace.end(self._method, self.route(), self.status)
