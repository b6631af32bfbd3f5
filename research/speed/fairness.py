"""Measures how long a plain search takes beside two clients that ask for much.

    python -m research.speed.fairness BUNDLE --results docs/results/fairness.json

Starts one process of the service with its default settings. One client searches, waits for the answer, pauses and
searches again: alone, beside two clients that do the same without a pause, and beside each pair of heavy clients, which
ask again as soon as they have an answer, whatever it says. Two clients have a process of their own, but share the
machine.

    filters       as many hits as there may be, for the longest query and a filter of 990 numbers in eleven conditions
    embeddings    64 texts of the longest length to encode
    batches       a batch of 64 searches for the longest query
    usual         a batch of 64 usual searches
    snippets      long snippets of as many hits as there may be
    explained     as many explained hits as there may be

Prints p50 and p99 of the plain search in milliseconds, and the statuses that the heavy clients got; the results file
has the same.
"""

import http.client
import json
import os
import random
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import combinations_with_replacement
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np

from lightretriever.loadtest.process import Server, serve_command
from lightretriever.loadtest.program import BUNDLE, option, program
from lightretriever.loadtest.record import four_digits, origin, write_json

__all__ = ["heavy_requests", "main", "measure"]

_SECONDS: Final = 10.0
_PAUSE_S: Final = 0.02
_TIMEOUT_S: Final = 60.0
_VARIANTS: Final = 16  # of each request, so that no cache answers it
_CONDITIONS: Final = 11
_NUMBERS: Final = 90
_QUERIES: Final = 100
_QUERY_WORDS: Final = 6

Request = tuple[str, bytes]
"""Path and body."""


def _connection(url: str) -> closing[http.client.HTTPConnection]:
    address = urlsplit(url)
    return closing(http.client.HTTPConnection(str(address.hostname), address.port, timeout=_TIMEOUT_S))


def _ask(connection: http.client.HTTPConnection, request: Request) -> tuple[int, bytes]:
    path, body = request
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def measure(url: str, seconds: float = _SECONDS) -> dict[str, Any]:
    """Give the times of a plain search alone, and beside each pair of clients, of a service on this machine."""
    with _connection(url) as client, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        client.request("GET", "/info")
        info = json.loads(client.getresponse().read())
        plain = _plain_requests(client, info)
        heavy = heavy_requests(info, [json.loads(body)["query"] for _, body in plain])
        pool.submit(abs, 1).result()  # the process has started
        alone, beside = _times(client, plain, seconds), list[dict[str, Any]]()
        for pair in [("plain", "plain"), *combinations_with_replacement(heavy, 2)]:
            requests = [plain if name == "plain" else heavy[name] for name in pair]
            pressed = pool.submit(_press, url, requests, seconds)
            sleep(min(1.0, seconds / 2))  # the heavy requests have begun
            times = _times(client, plain, seconds - min(1.0, seconds / 2))
            statuses = dict(zip(("first", "second"), pressed.result(), strict=True))
            row = {"clients": list(pair), **times, **statuses}
            beside.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    return {"alone": alone, "beside": beside}


def heavy_requests(info: Mapping[str, Any], queries: Sequence[str]) -> dict[str, list[Request]]:
    """Give variants of the heavy requests by name, within the limits of an `/info`, with words of queries."""
    limits, drawn = info["limits"], random.Random(0)
    words = sorted({word for query in queries for word in query.split()})
    hits = limits["max_candidates"]
    number = next((name for name, kind in info["filters"].items() if kind == "number"), None)

    def text(length: int = limits["max_query_chars"]) -> str:
        chosen = [f"{drawn.choice(words)} {drawn.randrange(10_000)}" for _ in range(length // 4)]
        return " ".join(chosen)[:length].strip()

    def condition() -> Mapping[str, Any]:
        if number is None:
            return {}
        each = [
            {"field": number, "in": [drawn.randrange(100_000) for _ in range(_NUMBERS)]} for _ in range(_CONDITIONS)
        ]
        return {"filter": {"not": {"or": each}}}

    makers: dict[str, Callable[[], tuple[str, dict[str, Any]]]] = {
        "filters": lambda: ("/search", {"query": text(), "k": hits, **condition()}),
        "embeddings": lambda: ("/v1/embeddings", {"model": "default", "input": [text() for _ in range(64)]}),
        "batches": lambda: ("/search/batch", {"searches": [{"query": text()} for _ in range(limits["max_batch"])]}),
        "usual": lambda: ("/search/batch", {"searches": [{"query": text(30)} for _ in range(limits["max_batch"])]}),
        "snippets": lambda: ("/search", {"query": text(), "k": hits, "snippets": {"length": 2000}}),
        "explained": lambda: ("/search", {"query": text(150), "k": min(hits, 500), "explain": True}),
    }
    return {name: [_request(*make()) for _ in range(_VARIANTS)] for name, make in makers.items()}


def _request(path: str, body: Mapping[str, Any]) -> Request:
    return path, json.dumps(body).encode()


def _plain_requests(client: http.client.HTTPConnection, info: Mapping[str, Any]) -> list[Request]:
    """Plain searches for the first words of documents."""
    asked = _request("/search", {"query": info["examples"][0], "k": _QUERIES, "fields": ["text"]})
    texts = [hit["fields"].get("text", "") for hit in json.loads(_ask(client, asked)[1])["hits"]]
    queries = [" ".join(text.split()[:_QUERY_WORDS]) for text in texts if text.strip()]
    return [_request("/search", {"query": query}) for query in queries]


def _times(client: http.client.HTTPConnection, requests: Sequence[Request], seconds: float) -> dict[str, Any]:
    """Search for so long; give p50 and p99 in milliseconds, and how many searches had which status."""
    times, statuses, until = list[float](), Counter[int](), perf_counter() + seconds
    for request in _turns(requests):
        begun = perf_counter()
        status, _ = _ask(client, request)
        times.append(perf_counter() - begun)
        statuses[status] += 1
        if perf_counter() >= until:
            break
        sleep(_PAUSE_S)
    p50, p99 = (four_digits(float(np.percentile(times, share)) * 1e3) for share in (50, 99))
    return {"p50_ms": p50, "p99_ms": p99, "statuses": _by_status(statuses)}


def _press(url: str, requests: Sequence[Sequence[Request]], seconds: float) -> list[dict[str, int]]:
    """Let a client each send its requests in turn for so long; give the number of answers by status."""
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(partial(_pressed, url, seconds), requests))


def _pressed(url: str, seconds: float, requests: Sequence[Request]) -> dict[str, int]:
    statuses, until = Counter[int](), perf_counter() + seconds
    with _connection(url) as client:
        for request in _turns(requests):
            status, _ = _ask(client, request)
            statuses[status] += 1
            if perf_counter() >= until:
                break
    return _by_status(statuses)


def _turns(requests: Sequence[Request]) -> Iterator[Request]:
    while True:
        yield from requests


def _by_status(statuses: Counter[int]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(statuses.items())}


@program(BUNDLE, option("--seconds", _SECONDS, "length for each pair of clients"), option("--results", None, type=Path))
def main(given: Namespace) -> None:
    """Measure, print and write."""
    load = os.getloadavg()[0]  # of other work, before this begins
    with Server(serve_command(given.bundle)) as server:
        found = measure(server.url, given.seconds)
    if given.results is not None:
        write_json(given.results, {**origin(), "load": round(load, 1), "command": given.command, **found})
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
