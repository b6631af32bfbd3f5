"""Load on a search server: a constant arrival rate (open loop), or a constant concurrency (closed loop).

    python -m lightretriever.loadtest.generator http://127.0.0.1:8080 --queries FOLDER --rate 500 --seconds 10
    python -m lightretriever.loadtest.generator http://127.0.0.1:8080 --queries FOLDER --connections 16 --seconds 10

Open loop: request i is due i/rate seconds after the start, whether or not earlier ones were answered, and its latency
counts from then. If a server stops for a second, all requests due meanwhile show it; a client that waits for answers
would never have sent them (coordinated omission). Closed loop: every connection sends its next request as soon as it
has the last answer, which gives the highest throughput at that concurrency.
"""

import asyncio
import json
import random
import selectors
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import uvloop

from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.loadtest.connection import Connection, LoadError, Target, Ticket, search_requests
from lightretriever.loadtest.counters import Counters
from lightretriever.loadtest.program import QUERIES, option, program

__all__ = ["closed_loop", "main", "open_loop", "read_texts", "run_loop"]

MOST_CONNECTIONS: Final = 512
"""The limit of select(2), which can wait for less than a millisecond, unlike epoll in Python."""
_CHECK_S: Final = 0.02


class _Run:
    """The requests of a run: waiting requests, connections, and counters. Calls `ended` when a request ends."""

    def __init__(
        self, target: Target, requests: Sequence[bytes], connections: int, limit_s: float, ended: Callable[[], None]
    ) -> None:
        if not requests:
            raise LoadError("There is no request to send.", remedy="Give queries.")
        if not 1 <= connections <= MOST_CONNECTIONS:
            raise LoadError(f"connections is {connections}.", remedy=f"Give 1 to {MOST_CONNECTIONS}.")
        self.counters = Counters()
        self.begun = 0
        self.finished = 0.0
        self._ended = ended
        self._target = target
        self._requests = requests
        self._limit = connections
        self._limit_s = limit_s
        self._checked = perf_counter()
        self._free: list[Connection] = []
        self._open: set[Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: deque[Ticket] = deque()

    def begin(self, due: float) -> None:
        """Send the next request, due at this `perf_counter` time, on a free connection, or queue it."""
        self._place(Ticket(self.begun, due))
        self.begun += 1

    def idle(self, connection: Connection) -> None:
        """Send the longest-waiting request on the connection."""
        self._open.add(connection)
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._free.append(connection)

    def answered(self, ticket: Ticket, status: int, body: bytes) -> None:
        """Count an answer."""
        self.finished = perf_counter()
        self.counters.answer(ticket, status, body)
        self._ended()

    def lost(self, connection: Connection, ticket: Ticket | None) -> None:
        """Remove a connection. Send its request once more if the server may have closed the connection as idle."""
        self._open.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        self._connect_if_needed()
        if ticket is None:
            return
        if connection.answers and not ticket.repeated:
            ticket.repeated = True
            self._place(ticket)
        else:
            self._end("failed")

    def drop_late(self) -> None:
        """Abandon overdue requests, at most every 20 ms."""
        now = perf_counter()
        if now - self._checked < _CHECK_S:
            return
        self._checked, before = now, now - self._limit_s
        while self._waiting and self._waiting[0].due < before:
            self._waiting.popleft()
            self._end("late")
        for connection in [one for one in self._open if one.ticket is not None and one.ticket.due < before]:
            connection.close()
            self._end("late")

    def close(self) -> None:
        """Abort all connections."""
        for connection in self._open:
            connection.close()

    def result(self, wall_s: float, used_s: float) -> dict[str, Any]:
        """Give the common result of both loops."""
        cost = {"sent": self.begun, "wall_s": round(wall_s, 3), "client_us": round(used_s / self.begun * 1e6, 1)}
        return {**self.counters.summary(wall_s), **cost}

    def _place(self, ticket: Ticket) -> None:
        if self._free:
            self._send(self._free.pop(), ticket)
            return
        self._waiting.append(ticket)
        self._connect_if_needed()

    def _connect_if_needed(self) -> None:
        if len(self._opening) < len(self._waiting) and len(self._open) + len(self._opening) < self._limit:
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _send(self, connection: Connection, ticket: Ticket) -> None:
        connection.send(ticket, self._requests[ticket.number % len(self._requests)])

    def _end(self, kind: str) -> None:
        self.counters.count(kind)
        self._ended()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: Connection(self), self._target.host, self._target.port)
        except OSError:
            if self._waiting:
                self._waiting.popleft()
                self._end("refused")


async def open_loop(
    url: str,
    requests: Sequence[bytes],
    *,
    rate: float,
    seconds: float,
    connections: int = 256,
    limit_s: float = 10.0,
) -> dict[str, Any]:
    """Send `rate` requests a second for `seconds`, and wait for each answer until `limit_s` after its request was due.
    Takes requests in order, and repeats them if there are too few.

    Gives `rate`, `Counters.summary`, `sent`, `wall_s`, and `client_us`, the generator's own processor time per request.
    """
    if not (rate > 0 and seconds > 0):
        raise LoadError(f"rate is {rate} and seconds is {seconds}; both must be above 0.")
    run = _Run(Target.of(url), requests, connections, limit_s, lambda: None)
    total, used, start = max(1, round(rate * seconds)), process_time(), perf_counter()
    while run.counters.ended < total:
        while run.begun < total and start + run.begun / rate <= perf_counter():
            run.begin(start + run.begun / rate)
        run.drop_late()
        pause = start + run.begun / rate - perf_counter() if run.begun < total else _CHECK_S
        await asyncio.sleep(min(max(pause, 0), _CHECK_S))
    run.close()
    return {"rate": rate, **run.result(max(run.finished - start, seconds), process_time() - used)}


async def closed_loop(
    url: str, requests: Sequence[bytes], *, connections: int, seconds: float, limit_s: float = 10.0
) -> dict[str, Any]:
    """Keep `connections` requests in flight for `seconds`; latency counts from the previous answer.

    Gives `connections`, and the rest as `open_loop` does.
    """
    if not seconds > 0:
        raise LoadError(f"seconds is {seconds}; it must be above 0.")
    used, start = process_time(), perf_counter()

    def next_one() -> None:
        if perf_counter() - start < seconds:
            run.begin(perf_counter())

    run = _Run(Target.of(url), requests, connections, limit_s, next_one)
    for _ in range(connections):
        run.begin(perf_counter())
    while run.counters.ended < run.begun:
        run.drop_late()
        await asyncio.sleep(_CHECK_S)
    run.close()
    return {"connections": connections, **run.result(max(run.finished, start + seconds) - start, process_time() - used)}


def run_loop(work: Coroutine[Any, Any, dict[str, Any]], *, on_time: bool = True) -> dict[str, Any]:
    """Run a loop to its end, on an event loop that wakes within microseconds of the requested time. A closed loop has
    no schedule, so it need not be `on_time` and costs less on uvloop."""

    def precise() -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(selectors.SelectSelector())

    with asyncio.Runner(loop_factory=precise if on_time else uvloop.new_event_loop) as runner:
        return runner.run(work)


def read_texts(folder: Path, seed: int) -> list[str]:
    """The queries of a folder in BEIR layout, shuffled. Raises CorpusError."""
    texts = list(read_queries(find_file(folder, "queries")).values())
    random.Random(seed).shuffle(texts)
    return texts


@program(
    option("url", str, "address of the server, as http://HOST:PORT"),
    QUERIES,
    option("--seconds", 10.0),
    option("--k", 10, "hits asked for"),
    option("--seed", 7, "order of the queries"),
    option("--rate", None, "requests a second: open loop", type=float),
    option("--connections", None, "requests at once: closed loop", type=int),
)
def main(given: Namespace) -> None:
    """Send load and print the result as JSON."""
    if (given.rate is None) == (given.connections is None):
        raise LoadError("There is no load, or two.", remedy="Give either --rate or --connections.")
    requests = search_requests(given.url, read_texts(given.queries, given.seed), given.k)
    if given.rate is not None:
        work = open_loop(given.url, requests, rate=given.rate, seconds=given.seconds)
    else:
        work = closed_loop(given.url, requests, connections=given.connections, seconds=given.seconds)
    print(json.dumps(run_loop(work, on_time=given.rate is not None)))


if __name__ == "__main__":
    sys.exit(main())
