"""One request and its answer: its id, its time, its metric, its log line, and what every answer says besides."""

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
"""nginx's number for a client that left."""

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
    """A request since it arrived. `given_id` is the id that it brings, if any; one of another form is replaced."""

    def __init__(self, method: str, path: str, given_id: str) -> None:
        self.arrived = perf_counter()
        """`perf_counter` time in seconds."""
        # It tells requests apart, and need not be hard to guess.
        self.request_id = given_id if _REQUEST_ID.fullmatch(given_id) else f"{random.getrandbits(64):016x}"
        self.status = 0
        """Of the answer, 0 before it begins."""
        self.seconds: float | None = None
        self.about: dict[str, Any] = {}
        """What the log line tells besides, such as the legs and their backends."""
        self._method = method
        self._path = path

    def headers(self, given: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Give an answer's headers and those that every answer gets."""
        headers = [*given, *_HEADERS, (b"x-request-id", self.request_id.encode())]
        if not any(name == _CSP[0] for name, _ in given):
            headers.append(_CSP)
        return headers

    def begin_answer(self, status: int) -> None:
        """Note the status, and that the answer begins now."""
        self.status = status
        self.end()

    def end(self) -> float:
        """Give the seconds until the answer began, or until now, when the request was given up without one."""
        if self.seconds is None:
            self.seconds = perf_counter() - self.arrived
        return self.seconds

    def failed(self, error: BaseException) -> InternalError:
        """Log an error that nobody meant to raise; gives the one that is told."""
        about = {"request_id": self.request_id, "error": type(error).__name__}
        _log.error("request failed", exc_info=error, extra=about)
        return InternalError("The reason is in the log, under this request id.")

    def close(self, route: str, metrics: Metrics) -> None:
        """Count the request at its route's pattern (a path itself could be anything, and would make a metric of its
        own), and write the access line. The query is in the body and stays out of it."""
        metrics.request(route, self.status).observe(self.end())
        line = {
            "request_id": self.request_id,
            "method": self._method,
            "path": shortened(self._path, _LONGEST_PATH),
            "status": self.status,
            "ms": round(self.end() * 1e3, 3),
        }
        _log.info("request", extra=line | self.about)


def refusal(
    error: ServiceError, metrics: Metrics, path: str, request_id: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Count an error, and give the answer that says it."""
    metrics.errors.labels(error.kind).inc()
    return problem_response(error, instance=path, request_id=request_id, headers=headers)
