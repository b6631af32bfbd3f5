"""Measure the cost of a request to its process, and the spread of latencies at half load.

    python -m research.speed.serving BUNDLE --queries FOLDER --results docs/results/speed.json

One process of the service, with default settings, answers 8 connections that send requests without a pause: first
until Java has compiled what it runs, then measured. That gives its highest throughput, its processor time for a
request, and its context switches, those of all its threads as Linux counts them. Then requests come at half of that
throughput, at a constant rate; p99 ÷ p50 is of these. At the end two processes answer the 8 connections.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.connection import LoadError, search_requests
from lightretriever.loadtest.generator import closed_loop, open_loop, read_texts, run_loop
from lightretriever.loadtest.process import Server, serve_command
from lightretriever.loadtest.program import BUNDLE, QUERIES, SPEED, option, program
from lightretriever.loadtest.record import median

from research.harness.rows import GOALS, record

__all__ = ["main", "measure"]

_CONNECTIONS: Final = 8


def measure(bundle: Bundle, texts: Sequence[str], seconds: float, turns: int, warm_up_s: float) -> list[dict[str, Any]]:
    """Give rows of `speed.json`, with medians over `turns` of `seconds` each, after `warm_up_s` of searches."""
    load = [round(value, 2) for value in os.getloadavg()]  # of other work, before ours
    saturated, half = list[dict[str, float]](), list[dict[str, float]]()
    with Server(serve_command(bundle.path.resolve())) as server:
        requests = search_requests(server.url, texts)
        _saturate(server, requests, warm_up_s)
        for _ in range(turns):
            saturated.append(_saturate(server, requests, seconds))
            rate = saturated[-1]["qps"] / 2
            half.append(run_loop(open_loop(server.url, requests, rate=rate, seconds=seconds)))
    with Server(serve_command(bundle.path.resolve(), "--workers", "2")) as server:
        requests = search_requests(server.url, texts)
        _saturate(server, requests, warm_up_s)
        both = [_saturate(server, requests, seconds)["qps"] for _ in range(turns)]
    facts = {"documents": bundle.manifest.documents, "turns": turns, "load_average": load}
    spread = [one["p99_ms"] / one["p50_ms"] for one in half]
    at_half = {name: median([one[name] for one in half]) for name in ("p50_ms", "p99_ms", "rate")}
    rows: list[dict[str, Any]] = [
        {"key": key, "unit": unit, "value": median([one[name] for one in saturated]), **facts}
        for key, unit, name in (
            ("request_cpu_ms", "ms", "cpu_ms"),
            ("saturated_qps", "requests/s", "qps"),
            ("switches", "a request", "switches"),
        )
    ]
    rows.append({"key": "saturated_two_qps", "unit": "requests/s", "value": median(both), **facts})
    return [*rows, {"key": "half_load", "unit": "times", "value": median(spread), **at_half, **facts}]


def _saturate(server: Server, requests: Sequence[bytes], seconds: float) -> dict[str, float]:
    switches, cpu_s = server.switches(), server.cpu_s()
    found = run_loop(closed_loop(server.url, requests, connections=_CONNECTIONS, seconds=seconds), on_time=False)
    answers = found["answered"]
    if not answers:
        raise LoadError("The service answered no request.", remedy="Give longer turns.")
    return {
        "switches": (server.switches() - switches) / answers,
        "cpu_ms": (server.cpu_s() - cpu_s) / answers * 1e3,
        "qps": found["qps"],
    }


@program(
    BUNDLE,
    QUERIES,
    option("--warm-up-s", 15.0, "seconds of searches before"),
    option("--seconds", 5.0, "length of a turn"),
    option("--turns", 5, "turns of each load"),
    option("--seed", 0, "order of the queries"),
    SPEED,
)
def main(given: Namespace) -> None:
    """Measure and record."""
    texts = read_texts(given.queries, given.seed)
    rows = measure(Bundle.open(given.bundle), texts, given.seconds, given.turns, given.warm_up_s)
    for row in rows:
        print(f"{GOALS[row['key']][0]:60s} {row['value']:>9,}, goal {GOALS[row['key']][1]}")
    record(given.results, rows, given.command)


if __name__ == "__main__":
    sys.exit(main())
