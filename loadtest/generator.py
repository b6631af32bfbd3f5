"""Load on a search server: a constant arrival rate (open loop), or a constant concurrency (closed loop).

    python -m lightretriever.loadtest.generator http://127.0.0.1:8080 --queries FOLDER --rate 500 --seconds 10
    python -m lightretriever.loadtest.generator http://127.0.0.1:8080 --queries FOLDER --connections 16 --seconds 10

Open loop: request i is due i/rate seconds after the start, whether or not earlier ones were answered, and its latency
counts from then. If a server stops for a second, all requests due meanwhile show it; locust's users, who wait for their
answers, would not have sent them (coordinated omission). Closed loop: every connection sends its next request as soon
as it has the last answer, which gives the highest throughput at that concurrency.
"""

import asyncio
import json
import random
import selectors
import sys
from argparse import Namespace
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import numpy as np
import uvloop

from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.loadtest.connection import Connection, LoadError, address, search_requests
from lightretriever.loadtest.program import QUERIES, option, program

COUNTS: Final = ("answered", "degraded", "refused", "failed", "late")
"""Outcomes of requests.

answered  status 200
degraded  status 200, but a leg is missing in the answer; also counted as answered
refused   status 429, 503 or 504, or no connection
failed    any other status, a broken connection, malformed HTTP
late      not answered within the time limit, sent or not
"""
MAX_CONNECTIONS: Final = 512
"""The limit of select(2), which can wait for less than a millisecond, unlike epoll in Python."""
_REFUSALS: Final = frozenset({429, 503, 504})


@dataclass
class _Run:
    """One run: its requests, free connections, counts, latencies and lags in seconds. A lag is the time from when a
    request was due to when it was written, with the wait for a free connection."""

    url: str
    requests: Sequence[bytes]
    connections: int
    limit_s: float
    sent: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    seconds: list[float] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    free: list[Connection] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 1 <= self.connections <= MAX_CONNECTIONS:
            raise LoadError(f"connections is {self.connections}.", remedy=f"Give 1 to {MAX_CONNECTIONS}.")
        self.host, self.port = address(self.url)
        self.slots = asyncio.Semaphore(self.connections)

    async def send(self, due: float) -> None:
        """Send the next request, due at this `perf_counter` time, and count its outcome."""
        request = self.requests[self.sent % len(self.requests)]
        self.sent += 1
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + due + self.limit_s - perf_counter()):
                async with self.slots:
                    kind = await self._answer(request, due)
        except TimeoutError:
            kind = "late"
        self.counts[kind] += 1

    async def _answer(self, request: bytes, due: float) -> str:
        try:
            while self.free and self.free[-1].at_eof():
                self.free.pop().close()
            connection = self.free.pop() if self.free else await Connection.open(self.host, self.port)
        except OSError:
            return "refused"
        self.lags.append(perf_counter() - due)
        try:
            response = await connection.send(request)
        except (OSError, EOFError, ValueError):
            return "failed"
        if connection.is_open:
            self.free.append(connection)
        if response.status != 200:
            return "refused" if response.status in _REFUSALS else "failed"
        self.seconds.append(perf_counter() - due)
        self.counts["degraded"] += b'"degraded":["' in response.body
        return "answered"

    def result(self, start: float, used_s: float, seconds: float) -> dict[str, Any]:
        """Return counts, `qps` (complete answers a second), latencies, lag, and the client's own cost of a request."""
        for connection in self.free:
            connection.close()
        wall_s = max(perf_counter() - start, seconds)
        whole = self.counts["answered"] - self.counts["degraded"]
        times = _percentiles_ms(self.seconds)
        return {
            **self.counts,
            "qps": round(whole / wall_s, 2),
            **times,
            "lag_p99_ms": _percentiles_ms(self.lags).get("p99_ms"),
            "sent": self.sent,
            "wall_s": round(wall_s, 3),
            "client_us": round((process_time() - used_s) / self.sent * 1e6, 1),
        }


def _percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 in milliseconds, to four digits; nothing of no values."""
    if not seconds:
        return {}
    values = np.percentile(seconds, [50, 95, 99]) * 1e3
    return {name: float(f"{value:.4g}") for name, value in zip(("p50_ms", "p95_ms", "p99_ms"), values, strict=True)}


async def open_loop(
    url: str, requests: Sequence[bytes], *, rate: float, seconds: float, connections: int = 256, limit_s: float = 10.0
) -> dict[str, Any]:
    """Send `rate` requests a second for `seconds`, in order and again from the first; wait for each answer until
    `limit_s` after its request was due. Return `rate` and `_Run.result`."""
    run = _Run(url, requests, connections, limit_s)
    used, start = process_time(), perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(max(1, round(rate * seconds))):
            due = start + number / rate
            if (pause := due - perf_counter()) > 0:
                await asyncio.sleep(pause)
            group.create_task(run.send(due))
            if not number % 8:
                await asyncio.sleep(0)  # a generator that is behind still lets its tasks run
    return {"rate": rate, **run.result(start, used, seconds)}


async def closed_loop(
    url: str, requests: Sequence[bytes], *, connections: int, seconds: float, limit_s: float = 10.0
) -> dict[str, Any]:
    """Keep `connections` requests under way; latency counts from the previous answer. Return them and `_Run.result`."""
    run = _Run(url, requests, connections, limit_s)
    used, start = process_time(), perf_counter()

    async def user() -> None:
        while perf_counter() - start < seconds:
            await run.send(perf_counter())

    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(user())
    return {"connections": connections, **run.result(start, used, seconds)}


def run_loop(work: Coroutine[Any, Any, dict[str, Any]], *, on_time: bool = True) -> dict[str, Any]:
    """Run a loop to its end, on an event loop that wakes within microseconds of the requested time. A closed loop has
    no schedule, so it need not be `on_time` and costs less on uvloop."""

    def precise() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.SelectSelector())

    with asyncio.Runner(loop_factory=precise if on_time else uvloop.new_event_loop) as runner:
        return runner.run(work)


def read_texts(folder: Path, seed: int) -> list[str]:
    """Return the queries of a folder in BEIR layout, shuffled. Raise CorpusError."""
    texts = list(read_queries(find_file(folder, "queries")).values())
    random.Random(seed).shuffle(texts)
    return texts


@program(
    option("url", str, "address of the server, as http://HOST:PORT"),
    QUERIES,
    option("--seconds", 10.0),
    option("--fields", {"k": 10}, "fields of a search beside the query, as JSON", type=json.loads),
    option("--seed", 7, "order of the queries"),
    option("--rate", None, "requests a second: open loop", type=float),
    option("--connections", None, "requests at once: closed loop", type=int),
)
def main(given: Namespace) -> None:
    """Send load and print the result as JSON."""
    if (given.rate is None) == (given.connections is None):
        raise LoadError("There is no load, or two.", remedy="Give either --rate or --connections.")
    requests = search_requests(given.url, read_texts(given.queries, given.seed), given.fields)
    if given.rate is not None:
        work = open_loop(given.url, requests, rate=given.rate, seconds=given.seconds)
    else:
        work = closed_loop(given.url, requests, connections=given.connections, seconds=given.seconds)
    print(json.dumps(run_loop(work, on_time=given.rate is not None)))


if __name__ == "__main__":
    sys.exit(main())
