"""Traffic from a process of its own: any requests, at a constant rate or by a number of clients, and every answer told.

`loadtest.generator` counts what became of searches. Here each request may be of another kind, and of each answer is
known when it came, its status, and what the server said beside the body. `mix` and `searches` make requests as a
service meets them: searches of every kind, batches, texts to encode, documents, and mistakes.
"""

import asyncio
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from multiprocessing import get_context
from time import perf_counter
from typing import Any, Final, NamedTuple

import orjson

from lightretriever.loadtest.connection import Connection, address
from tests.service.process import DOCUMENTS

_MAX_CONNECTIONS: Final = 900
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


def constant_rate(url: str, asks: Sequence[Ask], rate: float, seconds: float) -> list[Answer]:
    """Send `rate` requests a second, in turn, whether earlier ones are answered or not."""

    async def work() -> list[Answer]:
        load = _Load(url, asks)
        async with asyncio.TaskGroup() as group:
            for number in range(max(1, round(rate * seconds))):
                await asyncio.sleep(max(0.0, number / rate - load.now()))
                group.create_task(load.send(number / rate))
        return load.close()

    return asyncio.run(work())


def clients(
    url: str, asks: Sequence[Ask], count: int, seconds: float | None = None, *, keep: bool = False
) -> list[Answer]:
    """Run `count` clients that ask in turn, each its next request when the one before is answered: for `seconds`, or
    until everything was asked once. `keep`: the answers keep their bodies."""

    async def work() -> list[Answer]:
        load = _Load(url, asks, keep)

        async def client() -> None:
            while load.begun < len(asks) if seconds is None else load.now() < seconds:
                await load.send(load.now())

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(client())
        return load.close()

    return asyncio.run(work())


@contextmanager
def elsewhere(function: Callable[..., list[Answer]], *arguments: Any, **more: Any) -> Iterator[Future[list[Answer]]]:
    """Call one of these in a process of its own, which does not share this one's lock."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool.submit(function, *arguments, **more)


class _Load:
    """Requests under way and the answers so far."""

    def __init__(self, url: str, asks: Sequence[Ask], keep: bool = False) -> None:
        self.answers: list[Answer] = []
        self.begun = 0
        self._host, self._port = address(url)
        self._asks, self._keep = asks, keep
        self._start = perf_counter()
        self._free: list[Connection] = []
        self._open = 0

    def now(self) -> float:
        return perf_counter() - self._start

    async def send(self, due: float) -> None:
        """Send the next request, due at this time, and keep what became of it. If all connections wait for answers, the
        request is not sent."""
        number = self.begun % len(self._asks)
        self.begun += 1
        if self._open == _MAX_CONNECTIONS:
            return
        self._open += 1
        sent, status, more = self.now(), -1, dict[str, Any]()
        try:
            async with asyncio.timeout(60):
                status, more = await self._exchange(self._asks[number].request)
        except TimeoutError:
            pass
        finally:
            self._open -= 1
        self.answers.append(Answer(number, due, sent, self.now(), status, **more))

    async def _exchange(self, request: bytes) -> tuple[int, dict[str, Any]]:
        try:
            connection = self._idle() or await Connection.open(self._host, self._port)
            response = await connection.send(request)
        except (OSError, EOFError, ValueError):
            return 0, {}
        if connection.is_open:
            self._free.append(connection)
        body, headers = response.body, response.headers
        problem = orjson.loads(body) if headers.get(b"content-type") == _PROBLEM else {}
        return response.status, {
            "kind": problem.get("kind", ""),
            "retry_after": headers.get(b"retry-after", b"").decode(),
            "degraded": b'"degraded":["' in body,
            "digest": blake2b(bare(body), digest_size=8).digest(),
            "body": body if self._keep else b"",
        }

    def _idle(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if not connection.at_eof():
                return connection
            connection.close()
        return None

    def close(self) -> list[Answer]:
        for connection in self._free:
            connection.close()
        return self.answers


_WORDS: Final = (
    *("music", "terminal", "player", "library", "package", "daemon", "compiler", "game", "parser", "release"),
    *("reads", "converts", "plays", "searches", "compresses", "displays", "measures", "number", "übergröße"),
    *("files", "papers", "network", "images", "text", "documents", "chess", "background", "λόγος", "日本語", "🎵"),
)
_FUSIONS: Final[Sequence[dict[str, Any]]] = (
    {},
    {"fusion": {"method": "linear", "weights": {"dense": 0.2, "sparse": 0.8}}},
    {"fusion": {"method": "linear", "normalization": "paper"}},
    {"fusion": {"method": "rrf"}},
)


_MISTAKES: Final[Sequence[tuple[str, object, int]]] = (
    ("/search", b"{", 400),
    ("/search", {"query": 5}, 422),
    ("/search", {"query": "music", "fields": ["nothing"]}, 422),
    ("/search", {"query": "x" * 20_000}, 422),
    ("/search", {"query": "music", "unknown": [[[]]] * 50}, 422),
    ("/search/batch", {"searches": [{"query": "music"}, {"query": "music", "k": 0}]}, 422),
    ("/search", {"query": "music"}, 401),
    ("/encode", None, 405),
    ("/documents/there-is-none", None, 404),
    ("/nothing", None, 404),
)
"""Path, body and the status of the answer."""


def searches(count: int, seed: int = 7) -> list[dict[str, Any]]:
    """`count` bodies of searches: all modes and fusions, some hits or many, some candidates or many, pages, fields."""
    chance = random.Random(seed)
    return [_search(chance) for _ in range(count)]


def mix(key: str, count: int) -> list[Ask]:
    """`count` requests in the order in which they are asked: two thirds are searches, one in ten is a mistake."""
    chance = random.Random(7)
    paths = ("/search", "/search/batch", "/encode", "/documents", "/livez", "/nothing")
    return [_made(path, chance, key) for path in chance.choices(paths, weights=(64, 4, 8, 8, 6, 10), k=count)]


def _made(path: str, chance: random.Random, key: str) -> Ask:
    if path == "/search":
        return ask("POST", path, _search(chance), key=key)
    if path == "/search/batch":
        return ask("POST", path, {"searches": [_search(chance) for _ in range(chance.randint(1, 8))]}, key=key)
    if path == "/encode":
        return ask("POST", path, {"text": _query(chance)}, key=key)
    if path == "/documents":
        return ask("GET", f"{path}/doc-{chance.randrange(20, DOCUMENTS)}", key=key)
    if path == "/livez":
        path = chance.choice(["/metrics", path, "/readyz", "/info", "/", "/openapi.json"])
        return ask("GET", path, same=path != "/metrics")
    path, body, status = chance.choice(_MISTAKES)
    method = "GET" if body is None else "POST"
    return ask(method, path, body, key="lr_nobody" if status == 401 else key, status=status)


def _query(chance: random.Random) -> str:
    return " ".join(chance.choices(_WORDS, k=chance.randint(1, 12)))


def _search(chance: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"query": _query(chance), "mode": chance.choice(["hybrid"] * 3 + ["dense", "sparse"])}
    body |= {"k": chance.choice([1, 5, 10, 10, 10, 50]), "candidates": chance.choice([50, 100, 100, 500])}
    if body["mode"] == "hybrid":
        body |= chance.choice(_FUSIONS)
    if chance.random() < 0.1:
        body |= {"offset": 20, "k": 10, "fields": ["title"], "task": "fact"}
    return body
