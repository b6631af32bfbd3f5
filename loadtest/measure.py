"""Measuring several servers in turn, so that whatever disturbs the machine disturbs all of them."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lightretriever.loadtest.generator import closed_loop, open_loop, run_loop
from lightretriever.loadtest.process import ROOT, Server
from lightretriever.loadtest.systems import System
from lightretriever.loadtest.tally import median_of
from lightretriever.loadtest.wire import LoadError, Target

__all__ = ["CONCURRENCIES", "FRACTIONS", "Plan", "Running", "measure", "saturated"]

CONCURRENCIES: Final = (1, 4, 16, 64)
"""Requests at once, of the closed loops that look for the highest throughput."""
FRACTIONS: Final = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2)
"""Rates of the open loops, as parts of a system's own highest throughput."""
_USERS: Final = 16

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How long and how often: seconds of a run, rounds, the time limit of a request in seconds, hits asked for."""

    seconds: float = 10.0
    rounds: int = 3
    limit_s: float = 30.0
    k: int = 10
    concurrencies: tuple[int, ...] = CONCURRENCIES
    fractions: tuple[float, ...] = FRACTIONS


@dataclass(frozen=True)
class Running:
    """A system whose server runs."""

    system: System
    server: Server

    def requests(self, queries: Sequence[str], k: int) -> list[bytes]:
        """The queries as this server is asked."""
        target = Target.of(self.server.url)
        return [self.system.form(target, query, k) for query in queries]


def measure(running: Sequence[Running], queries: Sequence[str], plan: Plan, folder: Path | None) -> dict[str, Any]:
    """Closed loops, open loops up to beyond each system's saturation, and locust's users, in rounds over all systems.

    Gives `closed`, `open` and `locust` rows, each with `system` and `round`, `saturated` (answers a second by system)
    and `memory_mb` at the end. `folder` has queries.jsonl(.gz), for locust; None leaves locust out.
    """
    asked = {one.system.name: one.requests(queries, plan.k) for one in running}
    closed = [
        _closed(one, _from(asked[one.system.name], turn, number, plan), plan, connections) | {"round": turn}
        for turn in range(plan.rounds)
        for number, connections in enumerate(plan.concurrencies)
        for one in running
    ]
    highest = saturated(closed)
    opened = [
        _open(one, _from(asked[one.system.name], turn, number, plan), plan, fraction * highest[one.system.name])
        | {"round": turn, "of": fraction}
        for turn in range(plan.rounds)
        for number, fraction in enumerate(plan.fractions)
        for one in running
        if highest[one.system.name]
    ]
    users = [
        _locust(one, folder, plan) | {"round": turn}
        for turn in range(plan.rounds)
        for one in running
        if one.system.posts and folder is not None
    ]
    memory = {one.system.name: one.server.memory_mb() for one in running}
    return {"closed": closed, "open": opened, "locust": users, "saturated": highest, "memory_mb": memory}


def _from(requests: list[bytes], turn: int, number: int, plan: Plan) -> list[bytes]:
    """The requests from another place on in each run, the same for all systems: slow ones would else be asked the
    first few again and again."""
    runs = plan.rounds * max(len(plan.concurrencies), len(plan.fractions))
    first = len(requests) * (turn + plan.rounds * number) // runs
    return requests[first:] + requests[:first]


def saturated(closed: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By system, the highest of its medians over the rounds of answers a second, one median per concurrency."""
    found: dict[str, float] = {}
    for row in closed:
        same = [dict(r) for r in closed if (r["system"], r["connections"]) == (row["system"], row["connections"])]
        found[row["system"]] = max(found.get(row["system"], 0.0), median_of(same, "qps") or 0.0)
    return found


def _closed(one: Running, requests: list[bytes], plan: Plan, connections: int) -> Row:
    before = one.server.cpu_s()
    work = closed_loop(one.server.url, requests, connections=connections, seconds=plan.seconds, limit_s=plan.limit_s)
    return _row(one, run_loop(work, on_time=False), before)


def _open(one: Running, requests: list[bytes], plan: Plan, rate: float) -> Row:
    before = one.server.cpu_s()
    work = open_loop(one.server.url, requests, rate=round(rate, 3), seconds=plan.seconds, limit_s=plan.limit_s)
    return _row(one, run_loop(work), before)


def _row(one: Running, result: Row, before: float) -> Row:
    """`server_us`: processor time of the server per request that was sent, in microseconds."""
    used = (one.server.cpu_s() - before) / result["sent"] * 1e6
    print(f"{one.system.name}: {json.dumps(result)}", file=sys.stderr)
    return {"system": one.system.name, **result, "server_us": round(used, 1)}


def _locust(one: Running, folder: Path | None, plan: Plan) -> Row:
    with tempfile.TemporaryDirectory(prefix="locust-") as scratch:
        file = Path(scratch) / "latencies.json"
        words = ["-f", "loadtest/locustfile.py", "--headless", "--host", one.server.url, "-u", str(_USERS)]
        words += ["-r", str(_USERS), "-t", f"{max(1, round(plan.seconds))}s", "--queries", str(folder)]
        words += ["--k", str(plan.k), "--latencies", str(file)]
        run = subprocess.run(
            [sys.executable, "-m", "locust", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if not file.is_file():
            raise LoadError(f"locust ended with {run.returncode} and without a result: {run.stderr[-600:]}")
        return {"system": one.system.name, **json.loads(file.read_text(encoding="utf-8"))}
