"""The record of one request: its id, time, metric and log line, and the headers of every answer."""

import logging
import random
import re
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Final

from lightretriever.service.errors import InternalError, ServiceError, shortened
from lightretriever.service.http.json import problem_response
from lightretriever.service.observability.metrics import Metrics
from starlette.responses import Response

__all__ = ["CLIENT_CLOSED", "RequestRecord", "refusal"]

CLIENT_CLOSED: Final = 499
"""nginx's status for a client that disconnected."""

_log = logging.getLogger("lightretriever.access")

_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_CSP: Final = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")
_LONGEST_PATH: Final = 200


class RequestRecord:
    """A request since its arrival. `given_id` is the request id that the client sent; an invalid one is replaced."""

    def __init__(self, method: str, path: str, given_id: str) -> None:
        self.arrived = perf_counter()
        """`perf_counter` time in seconds."""
        # The id only tells requests apart; it may be guessable.
        self.request_id = given_id if _REQUEST_ID.fullmatch(given_id) else f"{random.getrandbits(64):016x}"
        self.status = 0
        """Status of the answer; 0 before the answer begins."""
        self.seconds: float | None = None
        self.about: dict[str, Any] = {}
        """Further fields of the log line, such as the legs and their backends."""
        self._method = method
        self._path = path

    def headers(self, given: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Add the headers of every answer to those given."""
        headers = [*given, *_HEADERS, (b"x-request-id", self.request_id.encode())]
        if not any(name == _CSP[0] for name, _ in given):
            headers.append(_CSP)
        return headers

    def begin_answer(self, status: int) -> None:
        """Record the status and the seconds until the answer begins."""
        self.status = status
        self.seconds = perf_counter() - self.arrived

    def failed(self, error: BaseException) -> InternalError:
        """Log an unexpected error; gives the error to answer with."""
        about = {"request_id": self.request_id, "error": type(error).__name__}
        _log.error("request failed", exc_info=error, extra=about)
        return InternalError("The reason is in the log, under this request id.")

    def close(self, route: str, metrics: Metrics) -> None:
        """Observe the request's time under its route's pattern, and write the access line, without the query."""
        seconds = perf_counter() - self.arrived if self.seconds is None else self.seconds
        metrics.request(route, self.status).observe(seconds)
        line = {
            "request_id": self.request_id,
            "method": self._method,
            "path": shortened(self._path, _LONGEST_PATH),
            "status": self.status,
            "ms": round(seconds * 1e3, 3),
        }
        _log.info("request", extra=line | self.about)


def refusal(
    error: ServiceError, metrics: Metrics, path: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Count an error, and give its problem answer."""
    metrics.errors.labels(error.kind).inc()
    return problem_response(error, instance=path, request_id=request_id, headers=headers)
