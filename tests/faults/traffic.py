"""Traffic from a process of its own: any requests, at a constant rate or by a number of clients, and every answer told.

`loadtest.generator` counts what became of searches. Here each request may be of another kind, and of each answer is
known when it came, its status, and what the server said beside the body.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from multiprocessing import get_context
from time import perf_counter
from typing import Any, Final, NamedTuple

import orjson

from lightretriever.loadtest.connection import Connection, Target, Ticket

__all__ = ["Answer", "Ask", "ask", "bare", "clients", "constant_rate", "elsewhere"]

_MOST_LINES: Final = 900
_STALE_S: Final = 30.0  # the server closes a connection that was idle for 75 s: a request must not meet that
_TICK_S: Final = 0.002
_PROBLEM: Final = b"application/problem+json"
_PASSING: Final = re.compile(rb'"timings_ms":\{[^}]*\}|"request_id":"[^"]*"')


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as it goes over the wire, the status that is its right answer, and whether that answer is the same
    every time."""

    request: bytes
    status: int = 200
    same: bool = True


class Answer(NamedTuple):
    """What became of a request. Times are seconds after the beginning; status 0: the connection broke or could not be
    made, -1: there was no answer in time. `digest` is that of the bare body."""

    number: int
    due: float
    sent: float
    ended: float
    status: int
    kind: str = ""
    retry_after: str = ""
    degraded: bool = False
    digest: bytes = b""
    body: bytes = b""
    fresh: bool = False


def ask(method: str, path: str, body: object = None, *, key: str = "", status: int = 200, same: bool = True) -> Ask:
    """Make a request. `body` becomes JSON, unless it is bytes."""
    content = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}"]
    head += ["Content-Type: application/json"] * (body is not None)
    head += [f"Authorization: Bearer {key}"] * bool(key)
    return Ask("\r\n".join([*head, "", ""]).encode() + content, status, same)


def bare(body: bytes) -> bytes:
    """Leave out what differs from one answer to the next: times, and the request's id."""
    return _PASSING.sub(b"", body)


def constant_rate(url: str, asks: Sequence[Ask], rate: float, seconds: float, *, limit_s: float = 60.0) -> list[Answer]:
    """Send `rate` requests a second, in turn, whether earlier ones are answered or not. An answer is waited for no
    longer than `limit_s`."""

    async def work() -> list[Answer]:
        load = _Load(url, asks, limit_s)
        total = max(1, round(rate * seconds))
        while load.begun < total or load.pending:
            while load.begun < total and load.begun / rate <= load.now():
                load.begin(load.begun / rate)
            load.give_up()
            await asyncio.sleep(_TICK_S)
        return load.close()

    return asyncio.run(work())


def clients(
    url: str,
    asks: Sequence[Ask],
    count: int,
    seconds: float | None = None,
    *,
    keep: bool = False,
    limit_s: float = 60.0,
) -> list[Answer]:
    """Let `count` clients ask in turn, each its next request when the one before is answered: for `seconds`, or until
    everything was asked once. `keep`: the answers keep their bodies."""

    async def work() -> list[Answer]:
        load = _Load(url, asks, limit_s, keep)

        def going() -> bool:
            return load.begun < len(asks) if seconds is None else load.now() < seconds

        while going() or load.pending:
            while going() and load.pending < count:
                load.begin(load.now())
            load.give_up()
            await asyncio.sleep(0 if going() else _TICK_S)
        return load.close()

    return asyncio.run(work())


@contextmanager
def elsewhere(function: Callable[..., list[Answer]], *arguments: Any, **more: Any) -> Iterator[Future[list[Answer]]]:
    """Call one of these in a process of its own, which does not share this one's lock."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool.submit(function, *arguments, **more)


@dataclass(slots=True)
class _Ticket(Ticket):
    line: "_Line | None" = None


class _Line(Connection):
    """A connection that knows the headers of its last answer, and since when it has been idle."""

    def __init__(self, load: "_Load") -> None:
        super().__init__(load)
        self.headers: dict[bytes, bytes] = {}
        self.idle_since = 0.0

    def on_message_begin(self) -> None:
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value


class _Load:
    """The owner of the connections."""

    def __init__(self, url: str, asks: Sequence[Ask], limit_s: float, keep: bool = False) -> None:
        self.begun = 0
        self._target = Target.of(url)
        self._asks, self._limit_s, self._keep = asks, limit_s, keep
        self._start = perf_counter()
        self._answers: list[Answer] = []
        self._free: list[_Line] = []
        self._lines: set[_Line] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: deque[_Ticket] = deque()
        self._checked = 0.0

    @property
    def pending(self) -> int:
        return self.begun - len(self._answers)

    def now(self) -> float:
        return perf_counter() - self._start

    def begin(self, due: float) -> None:
        ticket = _Ticket(self.begun, due)
        self.begun += 1
        while self._free:
            line = self._free.pop()
            if self.now() - line.idle_since < _STALE_S:
                self._send(line, ticket)
                return
            self._lines.discard(line)
            line.close()
        self._waiting.append(ticket)
        self._connect()

    def idle(self, connection: Connection) -> None:
        assert isinstance(connection, _Line)
        self._lines.add(connection)
        connection.idle_since = self.now()
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._free.append(connection)

    def answered(self, ticket: Ticket, status: int, body: bytes) -> None:
        assert isinstance(ticket, _Ticket)
        assert ticket.line is not None
        headers = ticket.line.headers
        problem = orjson.loads(body) if headers.get(b"content-type") == _PROBLEM else {}
        more = {
            "kind": problem.get("kind", ""),
            "retry_after": headers.get(b"retry-after", b"").decode(),
            "degraded": b'"degraded":["' in body,
            "digest": blake2b(bare(body), digest_size=8).digest(),
            "body": body if self._keep else b"",
            "fresh": ticket.line.answers == 1,
        }
        self._end(ticket, status, **more)

    def lost(self, connection: Connection, ticket: Ticket | None) -> None:
        assert isinstance(connection, _Line)
        self._lines.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        if ticket is not None:
            self._end(ticket, 0)
        if self._waiting:
            self._connect()

    def give_up(self) -> None:
        """End what was due too long ago."""
        now = self.now()
        if now - self._checked < 1:
            return
        self._checked = now
        while self._waiting and self._waiting[0].due < now - self._limit_s:
            self._end(self._waiting.popleft(), -1)
        for line in [one for one in self._lines if one.ticket is not None]:
            ticket = line.ticket
            if ticket is not None and ticket.due < now - self._limit_s:
                line.close()
                self._lines.discard(line)
                self._end(ticket, -1)

    def close(self) -> list[Answer]:
        for line in self._lines:
            line.close()
        return self._answers

    def _send(self, line: _Line, ticket: _Ticket) -> None:
        ticket.line = line
        line.send(ticket, self._asks[ticket.number % len(self._asks)].request)

    def _end(self, ticket: Ticket, status: int, **more: Any) -> None:
        sent = ticket.sent - self._start if ticket.sent else self.now()
        number = ticket.number % len(self._asks)
        self._answers.append(Answer(number, ticket.due, sent, self.now(), status, **more))

    def _connect(self) -> None:
        if len(self._opening) < len(self._waiting) and len(self._lines) + len(self._opening) < _MOST_LINES:
            task = asyncio.get_running_loop().create_task(self._open())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: _Line(self), self._target.host, self._target.port)
        except OSError:
            if self._waiting:
                self._end(self._waiting.popleft(), 0)
