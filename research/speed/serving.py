"""Measure the cost of a request to its process, the spread of latencies at half load, and the rule for threads.

    python -m research.speed.serving BUNDLE --queries FOLDER --results docs/results/speed.json

One and two processes of the service, each with one, two and the default number of request threads, take turns. Each
answers 8 connections that send requests without a pause: first until Java has compiled what it runs, then measured.
That gives its highest throughput, its processor time for a request, and its context switches, those of all its threads
as Linux counts them. Then requests come at half of that throughput, at a constant rate. The rows with goals are of the
default number of threads.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.connection import LoadError, search_requests
from lightretriever.loadtest.generator import closed_loop, open_loop, read_texts, run_loop
from lightretriever.loadtest.process import Server, serve_command
from lightretriever.loadtest.program import BUNDLE, QUERIES, SPEED, option, program
from lightretriever.loadtest.record import median
from lightretriever.service.settings import ENV_PREFIX, Settings
from research.harness.rows import GOALS, record

__all__ = ["main", "measure"]

_CONNECTIONS: Final = 8
_AT_HALF: Final = ("p50_ms", "p99_ms", "rate")


def measure(bundle: Bundle, texts: Sequence[str], seconds: float, turns: int, warm_up_s: float) -> list[dict[str, Any]]:
    """Give rows of `speed.json`, with medians over `turns` of `seconds` each, after `warm_up_s` of searches."""
    load = [round(value, 2) for value in os.getloadavg()]  # of other work, before ours
    found: dict[tuple[int, int], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        sides = []
        for processes in (1, 2):
            for threads in sorted({1, 2, _default(processes)}):
                command = serve_command(bundle.path.resolve(), "--workers", str(processes))
                environment = {f"{ENV_PREFIX}SEARCH_THREADS": str(threads)}
                server = stack.enter_context(Server(command, environment=environment))
                requests = search_requests(server.url, texts)
                _saturate(server, requests, warm_up_s)
                sides.append((found.setdefault((processes, threads), []), server, requests))
        for _ in range(turns):
            for turn, server, requests in sides:
                saturated = _saturate(server, requests, seconds)
                rate = saturated["qps"] / 2
                half = run_loop(open_loop(server.url, requests, rate=rate, seconds=seconds))
                spread = half["p99_ms"] / half["p50_ms"]
                turn.append({**saturated, **{name: half[name] for name in _AT_HALF}, "spread": spread})
    facts = {"documents": bundle.manifest.documents, "turns": turns, "load_average": load}
    medians = {side: {name: median([turn[name] for turn in of]) for name in of[0]} for side, of in found.items()}
    one, two = (medians[processes, _default(processes)] for processes in (1, 2))
    rows: list[dict[str, Any]] = [
        {"key": key, "unit": unit, "value": values[name], **facts}
        for key, unit, name, values in (
            ("request_cpu_ms", "ms", "cpu_ms", one),
            ("saturated_qps", "requests/s", "qps", one),
            ("switches", "a request", "switches", one),
            ("saturated_two_qps", "requests/s", "qps", two),
        )
    ]
    rows.append(
        {"key": "half_load", "unit": "times", "value": one["spread"], **{name: one[name] for name in _AT_HALF}, **facts}
    )
    for (processes, threads), values in medians.items():
        default = ", the default" if threads == _default(processes) else ""
        setting = f"processes: {processes}, request threads of each: {threads}{default}"
        named = {name: value for name, value in values.items() if name != "qps"}
        about = {"key": "threads", "setting": setting, "unit": "requests/s", "value": values["qps"]}
        rows.append({**about, **named, **facts})
    return rows


def _default(processes: int) -> int:
    return Settings().among(processes).threads()


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
        what, goal = GOALS.get(row["key"], (row.get("setting"), "–"))
        print(f"{what:60s} {row['value']:>9,}, goal {goal}")
    record(given.results, rows, given.command, whole=["threads"])


if __name__ == "__main__":
    sys.exit(main())
