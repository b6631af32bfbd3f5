"""A plain search without ASGI and a route around it: from the bytes of its body to the parts of its answer."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson
from lightretriever.service.errors import ServiceError
from lightretriever.service.execution.jobs import Job, Steps
from lightretriever.service.http.access_log import CLIENT_CLOSED, Exchange, Headers, refusal
from lightretriever.service.http.fastpath.heads import PLAIN_PATH, PlainHead
from lightretriever.service.http.json import JSON, model_of
from lightretriever.service.http.state import Desk
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.engine_lease import Tenure
from lightretriever.service.search.hits import Plain
from pydantic import BaseModel
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

__all__ = ["Answer", "Flight", "message_of"]

_METHOD: Final = "POST"
_OK: Final = 200

Answer = tuple[int, Headers, bytes]
"""Status, headers, body."""

_NO_ANSWER: Final[Answer] = (500, ((b"content-length", b"0"),), b"")


def message_of(answer: Answer, more: Headers, *, closes: bool) -> bytes:
    """The bytes of an answer with `more` headers, after which the connection is closed or not."""
    status, headers, body = answer
    parts = [STATUS_LINE[status]]
    for name, value in (*more, *headers):
        parts += (name, b": ", value, b"\r\n")
    parts += (b"connection: close\r\n\r\n" if closes else b"\r\n", body)
    return b"".join(parts)


class Flight:
    """One plain search under way. What the route and what lies around it do for every other request is done here: who
    may ask, how many may wait, the engine that is kept as long as it works, the metrics and the log line."""

    __slots__ = ("_cancelled", "_desk", "_ended", "_exchange", "_jobs", "_land", "_tenure")

    def __init__(
        self, desk: Desk, head: PlainHead, land: "Callable[[Flight, Answer], object]", came: float | None = None
    ) -> None:
        """`land` is called with the answer, once, in some thread, unless the search was cancelled before. `came` is the
        `perf_counter` time when the head came, default now."""
        self._desk = desk
        self._land = land
        self._exchange = Exchange(_METHOD, PLAIN_PATH, head.request_id, came)
        self._jobs: Sequence[Job[Any]] = ()
        self._tenure: Tenure | None = None
        self._cancelled = False
        self._ended = False

    def begin(self, head: PlainHead, body: bytes) -> None:
        """Begin, in any thread."""
        desk = self._desk
        desk.serving.metrics.in_flight.inc()
        try:
            desk.gate.enter("search", head.authorization, None)
            desk.admission.enter()
        except Exception as error:
            self._end(None, error)
            return
        while (engine := (tenure := desk.serving.current).begin_if_open()) is None:
            pass  # another one is current by now
        self._tenure = tenure
        try:
            self._jobs = engine.begin(self._steps(engine, body), self._done)
        except Exception as error:
            self._done(None, error)
        if self._ended:
            self._jobs = ()
        elif self._cancelled:  # by another thread, before there was a job
            self.cancel()

    def cancel(self) -> None:
        """Take no further step: the client has left."""
        self._cancelled = True
        for job in self._jobs:
            job.cancel()

    def _steps(self, engine: SearchEngine, body: bytes) -> Steps[Plain]:
        request = model_of(body, SearchRequest)
        return (yield from engine.errands.search(request, arrived=self._exchange.arrived))

    def _done(self, value: Plain | None, error: BaseException | None) -> None:
        self._desk.admission.leave()
        if self._tenure is not None:
            self._tenure.leave()
            self._tenure = None
        self._end(value, error)

    def _end(self, value: Plain | None, error: BaseException | None) -> None:
        """Count, log and answer, in this order: who has the answer finds it counted."""
        metrics = self._desk.serving.metrics
        answer = _NO_ANSWER
        try:
            if not self._cancelled:
                answer = self._written(value, error)
            self._exchange.begin_answer(CLIENT_CLOSED if self._cancelled else answer[0])
            self._exchange.close(PLAIN_PATH, metrics)
        finally:
            metrics.in_flight.dec()
            self._ended = True
            self._jobs = ()  # a job knows whom to tell: nothing of a search outlives it
            if not self._cancelled:
                self._land(self, answer)

    def _written(self, value: Plain | None, error: BaseException | None) -> Answer:
        if error is None:
            try:
                body = orjson.dumps(value, default=BaseModel.model_dump)
            except Exception as mistake:
                error = mistake
            else:
                headers = [(b"content-length", b"%d" % len(body)), (b"content-type", JSON.encode())]
                return _OK, self._exchange.headers(headers), body
        told = error if isinstance(error, ServiceError) else self._exchange.failed(error)
        response = refusal(told, self._desk.serving.metrics, PLAIN_PATH, self._exchange.request_id)
        return response.status_code, self._exchange.headers(response.raw_headers), bytes(response.body)
