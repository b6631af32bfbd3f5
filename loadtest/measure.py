"""Measures several servers in turn, so that a disturbance of the machine affects all of them."""

import json
import re
import sys
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from lightretriever.artifacts.evaluation.runs import JudgedQueries
from lightretriever.loadtest.connection import LoadError, search_requests
from lightretriever.loadtest.counters import median_of
from lightretriever.loadtest.generator import closed_loop, open_loop, run_loop
from lightretriever.loadtest.overlap import ExactAnswers, ndcg, overlap
from lightretriever.loadtest.process import Server, finish
from lightretriever.loadtest.record import four_digits
from lightretriever.loadtest.systems import System

__all__ = ["CONCURRENCIES", "FRACTIONS", "Plan", "Running", "measure", "saturated", "start"]

CONCURRENCIES: Final = (1, 4, 16, 64)
"""Concurrencies of the closed loops that determine the highest throughput."""
FRACTIONS: Final = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 1.0, 1.2)
"""Rates of the open loops, as parts of a system's own highest throughput."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """The extent of a measurement: seconds of searches before it, as Java compiles what it runs often, seconds of a
    run, rounds, the time limit of a request in seconds, hits, loads, and queries whose answers are compared."""

    warm_up_s: float = 15.0
    seconds: float = 10.0
    rounds: int = 3
    limit_s: float = 30.0
    k: int = 10
    concurrencies: tuple[int, ...] = CONCURRENCIES
    fractions: tuple[float, ...] = FRACTIONS
    compared: int = 100


@dataclass(frozen=True)
class Running:
    """A system with a running server."""

    system: System
    server: Server


def start(system: System, limit_s: float, stack: ExitStack) -> Running | str:
    """Build a system's index and start its server, which ends with the `stack`; give the reason if it can't start."""
    if system.missing is not None:
        return system.missing
    print(f"starting {system.name}", file=sys.stderr)
    # Every connection of the generator may wait, so that slow systems are measured, not refused.
    settings = {"LIGHTRETRIEVER_DEADLINE_MS": f"{limit_s * 1e3:.0f}", "LIGHTRETRIEVER_MAX_WAITING": "256"}
    settings["LANCEDB_LOG"] = "error"  # else it writes two warnings a query
    try:
        if system.prepare:
            finish(system.prepare)
        server = stack.enter_context(Server([*system.command, "--port", "0"], environment=settings))
    except LoadError as error:
        # Paths of this machine's folders don't belong in a result.
        return f"it did not start: {re.sub(r'/[^ ]*/', '', error.message)}"
    return Running(system, server)


def measure(
    running: Sequence[Running],
    queries: Sequence[str],
    plan: Plan,
    exact: ExactAnswers,
    judged: JudgedQueries | None = None,
) -> dict[str, Any]:
    """Closed loops, and open loops up to beyond each system's saturation, in rounds over all systems.

    Gives `closed` and `open` rows, each with `system` and `round`, `saturated` (answers a second by system),
    `memory_mb` at the end, `overlap` of each system's answers with the exact ones, and `ndcg`, their nDCG@10, if there
    are judgments.
    """
    shares = {
        one.system.name: four_digits(
            overlap(one.server.url, exact.queries, exact.rrf if one.system.ranks else exact.default)
        )
        for one in running
    }
    quality = {one.system.name: four_digits(ndcg(one.server.url, judged)) for one in running} if judged else {}
    asked = {one.system.name: search_requests(one.server.url, queries, plan.k) for one in running}
    for one in running:
        run_loop(
            closed_loop(
                one.server.url,
                asked[one.system.name],
                connections=max(plan.concurrencies),
                seconds=plan.warm_up_s,
                limit_s=plan.limit_s,
            ),
            on_time=False,
        )
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
    memory = {one.system.name: one.server.memory_mb() for one in running}
    found = {"closed": closed, "open": opened, "saturated": highest, "memory_mb": memory, "overlap": shares}
    return found | ({"ndcg": quality} if judged else {})


def _from(requests: list[bytes], turn: int, number: int, plan: Plan) -> list[bytes]:
    """Rotate the requests to another start in each run, the same for all systems; otherwise slow systems would get only
    the first few."""
    runs = plan.rounds * max(len(plan.concurrencies), len(plan.fractions))
    first = len(requests) * (turn + plan.rounds * number) // runs
    return requests[first:] + requests[:first]


def saturated(closed: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Give each system's highest median of answers a second over the rounds, one median per concurrency."""
    found: dict[str, float] = {}
    for row in closed:
        same = [dict(r) for r in closed if (r["system"], r["connections"]) == (row["system"], row["connections"])]
        found[row["system"]] = max(found.get(row["system"], 0.0), median_of(same, "qps") or 0.0)
    return found


def _closed(one: Running, requests: list[bytes], plan: Plan, connections: int) -> Row:
    url, seconds, limit_s = one.server.url, plan.seconds, plan.limit_s
    work = closed_loop(url, requests, connections=connections, seconds=seconds, limit_s=limit_s)
    return _row(one, work, on_time=False)


def _open(one: Running, requests: list[bytes], plan: Plan, rate: float) -> Row:
    url, seconds, limit_s = one.server.url, plan.seconds, plan.limit_s
    return _row(one, open_loop(url, requests, rate=round(rate, 3), seconds=seconds, limit_s=limit_s), on_time=True)


def _row(one: Running, work: Coroutine[Any, Any, Row], *, on_time: bool) -> Row:
    """Run a loop. `server_us`: processor time of the server per sent request, in microseconds."""
    before = one.server.cpu_s()
    result = run_loop(work, on_time=on_time)
    used = (one.server.cpu_s() - before) / result["sent"] * 1e6
    print(f"{one.system.name}: {json.dumps(result)}", file=sys.stderr)
    return {"system": one.system.name, **result, "server_us": round(used, 1)}
