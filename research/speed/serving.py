"""Measure the cost of a request to its process, and the spread of latencies at half load.

    python -m research.speed.serving BUNDLE --queries FOLDER --results docs/results/speed.json

One process of the service, with default settings, first answers 8 connections that send requests without a pause. That
gives its highest throughput, its processor time for a request, and its context switches, those of all its threads as
Linux counts them. Then requests come at half of that throughput, at a constant rate; p99 ÷ p50 is of these.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.loadtest.connection import LoadError, search_requests
from lightretriever.loadtest.generator import closed_loop, open_loop, read_texts, run_loop
from lightretriever.loadtest.process import Server
from lightretriever.loadtest.record import GOALS, four_digits, record, typed
from lightretriever.loadtest.service_costs import serve_command

__all__ = ["main", "measure"]

_CONNECTIONS: Final = 8


def measure(bundle: Bundle, texts: Sequence[str], seconds: float, turns: int) -> list[dict[str, Any]]:
    """Give rows of `speed.json`, with medians over `turns` of `seconds` each."""
    load = [round(value, 2) for value in os.getloadavg()]  # of other work, before ours
    saturated, half = list[dict[str, float]](), list[dict[str, float]]()
    with Server(serve_command(bundle.path.resolve())) as server:
        requests = search_requests(server.url, texts)
        _saturate(server, requests, seconds)  # until Java is fast
        for _ in range(turns):
            saturated.append(_saturate(server, requests, seconds))
            rate = saturated[-1]["qps"] / 2
            half.append(run_loop(open_loop(server.url, requests, rate=rate, seconds=seconds)))
    facts = {"documents": bundle.manifest.documents, "turns": turns, "load_average": load}
    spread = [one["p99_ms"] / one["p50_ms"] for one in half]
    at_half = {name: _median([one[name] for one in half]) for name in ("p50_ms", "p99_ms", "rate")}
    rows: list[dict[str, Any]] = [
        {"key": key, "unit": unit, "value": _median([one[name] for one in saturated]), **facts}
        for key, unit, name in (
            ("request_cpu_ms", "ms", "cpu_ms"),
            ("saturated_qps", "requests/s", "qps"),
            ("switches", "a request", "switches"),
        )
    ]
    return [*rows, {"key": "half_load", "unit": "times", "value": _median(spread), **at_half, **facts}]


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


def _median(values: Sequence[float]) -> float:
    return four_digits(float(np.median(values)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and record; returns the exit status."""
    parser = argparse.ArgumentParser(description="What a request costs the process that serves it.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a turn (5)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each load (5)")
    parser.add_argument("--seed", type=int, default=0, help="order of the queries")
    parser.add_argument("--results", type=Path, help="file of speeds to record in")
    given = parser.parse_args(arguments)
    try:
        rows = measure(Bundle.open(given.bundle), read_texts(given.queries, given.seed), given.seconds, given.turns)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print(f"{GOALS[row['key']][0]:60s} {row['value']:>9,}, goal {GOALS[row['key']][1]}")
    if given.results is not None:
        record(given.results, rows, typed("research.speed.serving", arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
