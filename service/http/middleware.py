"""What every request has: an id, headers of its answer, metric, trace, log line, and a problem for an error."""

import asyncio
import logging
import random
import re
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lightretriever.service.errors import InternalError, OverloadedError, ServiceError, shortened
from lightretriever.service.http.json import problem_response
from lightretriever.service.observability.metrics import Metrics, StageClock

if TYPE_CHECKING:
    from lightretriever.service.http.handling import AppState

_log = logging.getLogger("lightretriever.access")

_CLIENT_CLOSED: Final = 499  # nginx's status for a client that disconnected
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_CSP: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_MAX_PATH: Final = 200
_MAX_ADDRESS: Final = 45


class Application:
    """The ASGI application: another one, with what every request and answer has."""

    def __init__(self, app: ASGIApp, state: "AppState") -> None:
        self.state = state
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan."""
        scope["app"] = self
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = self.state
        metrics, answer = state.collections.first.metrics, _Answer(scope, send)
        clock = StageClock(answer.arrived, None if state.tracing is None else [])
        scope.setdefault("state", {}).update(clock=clock, request_id=answer.request_id, log_fields=answer.log_fields)
        metrics.in_flight.inc()
        try:
            await self._app(scope, receive, answer)
        except ClientDisconnect:
            answer.status = _CLIENT_CLOSED
        except asyncio.CancelledError:
            answer.status = _CLIENT_CLOSED
            raise
        except Exception as error:
            refusal = error
            if not isinstance(refusal, ServiceError):
                fields = {"request_id": answer.request_id, "error": type(error).__name__}
                _log.error("request failed", exc_info=error, extra=fields)
                if answer.status:
                    raise  # part of the answer was sent: the server must close the connection
                refusal = InternalError("The reason is in the log, under this request id.")
            if isinstance(refusal, OverloadedError):
                await asyncio.sleep(state.admission.pause(perf_counter()))
            metrics.errors.labels(refusal.kind).inc()
            problem = problem_response(refusal, instance=scope["path"], request_id=answer.request_id)
            await problem(scope, receive, answer)
        finally:
            metrics.in_flight.dec()
            route = getattr(scope.get("route"), "path", "unknown")
            if state.tracing is not None:
                answer.log_fields["trace_id"] = state.tracing.record(scope, clock, route, answer.status)
            answer.close(route, metrics)


class _Answer:
    """Sends the answer to a request, and records its status and time."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self.arrived = perf_counter()
        sent_id = Headers(scope=scope).get("x-request-id", "")
        # The id only tells requests apart; it may be guessable.
        self.request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else f"{random.getrandbits(64):016x}"
        self.status = 0
        """Status of the answer; 0 before the answer begins."""
        self.log_fields: dict[str, Any] = {
            "request_id": self.request_id,
            "method": scope["method"],
            "path": shortened(scope["path"], _MAX_PATH),
            "client": shortened((scope.get("client") or ("",))[0].removeprefix("::ffff:"), _MAX_ADDRESS),
        }
        """The fields of the log line, to which others are added, such as the legs and their backends."""
        self._seconds: float | None = None
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self._seconds = message["status"], perf_counter() - self.arrived
            headers = [*message["headers"], *_HEADERS, (b"x-request-id", self.request_id.encode())]
            if not any(name == _CSP[0] for name, _ in headers):
                headers.append(_CSP)
            message = {**message, "headers": headers}
        await self._send(message)

    def close(self, route: str, metrics: Metrics) -> None:
        """Observe the request's time under its route's pattern, and write the access line, without the query."""
        seconds = perf_counter() - self.arrived if self._seconds is None else self._seconds
        metrics.request(route, self.status).observe(seconds)
        self.log_fields["status"], self.log_fields["ms"] = self.status, round(seconds * 1e3, 3)
        _log.info("request", extra=self.log_fields)
