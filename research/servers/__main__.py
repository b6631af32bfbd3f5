"""Compare the service with other systems under load: measure, record, report (`make bench`).

    python -m research.servers BUNDLE --queries FOLDER --output docs/results [--model MODEL] […]

As `lightretriever.loadtest.bench`, whose options these are, with more systems. Also records the service's rows in
OUTPUT/speed.json: highest throughput, ratios to peers, start, and memory of one and of two processes.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.bench import OPTIONS, compare, write
from lightretriever.loadtest.connection import search_requests
from lightretriever.loadtest.counters import median_of
from lightretriever.loadtest.generator import closed_loop, read_texts, run_loop
from lightretriever.loadtest.process import Server, serve_command
from lightretriever.loadtest.program import option, program
from lightretriever.loadtest.record import four_digits
from lightretriever.loadtest.systems import LLM, OURS, PROCESSES, Given, systems
from research.harness.rows import record
from research.servers.systems import PEERS, others

__all__ = ["goal_rows", "main", "processes"]

Row = dict[str, Any]


def goal_rows(load: Row) -> list[Row]:
    """Derive the rows of `speed.json` from the measurements."""
    facts: Row = {"documents": load["bundle"]["documents"], "queries": load["queries"]["count"]}
    rows: list[Row] = []
    highest = load["saturated"]
    ours = {name: highest[name] for name in (OURS, PROCESSES) if name in highest}
    if ours:
        best = max(ours, key=lambda name: ours[name])
        qps = facts | {"processes": 2 if best == PROCESSES else 1}
        rows.append({"key": "qps_http_hybrid", "unit": "queries/s", "value": round(ours[best], 1), **qps})
        if highest.get(LLM):
            ratio = {"value": round(ours[best] / highest[LLM], 1), "llm_qps": round(highest[LLM], 2)}
            rows.append({"key": "qps_vs_llm", "unit": "times", **ratio, "model": load["model"], **qps})
    rows += peer_rows(load, facts)
    if own := load.get("own"):
        times = [{"s": seconds} for seconds in own["ready_s"]]
        rows.append({"key": "ready_s", "unit": "s", "value": median_of(times, "s"), "runs": own["ready_s"], **facts})
        second = own["processes"][1]
        rows.append({"key": "second_process_mb", "unit": "MiB", "value": second["added_pss"], **second, **facts})
    return rows


def peer_rows(load: Row, facts: Row) -> list[Row]:
    """Derive a row for each peer: requests/s of the service divided by the peer's, p99 at half load of the peer divided
    by the service's, each one's overlap with exact answers, and nDCG@10 if it was measured."""
    highest, rows = load["saturated"], []
    half = {
        name: median_of([row for row in load["open"] if (row["system"], row["of"]) == (name, 0.5)], "p99_ms")
        for name in highest
    }
    for name in (name for name in PEERS if highest.get(name) and OURS in highest):
        label = next(one["label"] for one in load["systems"] if one["name"] == name)
        corpus = f"{load['bundle']['corpus']}, {load['bundle']['documents']:,} documents"
        row: Row = {"key": "peers", "setting": f"{label} ({corpus})", "system": name, "unit": "times"}
        row["value"] = four_digits(highest[OURS] / highest[name])
        if (own := half[OURS]) and (theirs := half[name]):
            row["p99"] = four_digits(theirs / own)
        quality = {"overlap": load["overlap"][name], "our_overlap": load["overlap"][OURS]}
        if judged := load.get("ndcg"):
            quality |= {"ndcg": judged[name], "our_ndcg": judged[OURS]}
        rows.append({**row, **quality, "peer_qps": four_digits(highest[name]), **facts})
    return rows


def start_times(bundle: Path, rounds: int) -> list[float]:
    """Measure the seconds from a process's start to its readiness, `rounds` times, with the page cache as it is."""
    times = []
    for _ in range(rounds):
        with Server(serve_command(bundle)) as server:
            times.append(round(server.ready_s, 3))
    return times


def processes(bundle: Path, queries: Sequence[str], seconds: float, count: int = 2) -> list[dict[str, float]]:
    """Measure memory in MiB with 1 to `count` service processes on the same bundle, each after `seconds` of searches.

    One entry per number of processes: `total_pss` of all, `added_pss` by the last, and the last one's `private`.
    """
    found: list[dict[str, float]] = []
    with ExitStack() as stack:
        servers: list[Server] = []
        for _ in range(count):
            servers.append(server := stack.enter_context(Server(serve_command(bundle))))
            requests = search_requests(server.url, queries)
            run_loop(closed_loop(server.url, requests, connections=8, seconds=seconds), on_time=False)
            sizes = [one.memory_mb() for one in servers]
            total = round(sum(size["pss"] for size in sizes), 1)
            added = round(total - (found[-1]["total_pss"] if found else 0), 1)
            found.append({"total_pss": total, "added_pss": added, "private": sizes[-1]["private"]})
    return found


@program(
    *OPTIONS,
    option("--speed", None, "file of the service's rows (OUTPUT/speed.json)", type=Path),
    option("--work", Path("runs/loadtest"), "indexes of other systems"),
    option("--peers", False, "record ratios to peers alone, no costs of the service"),
)
def main(given: Namespace) -> None:
    """Measure, record and report."""
    inputs = Given(**{field.name: getattr(given, field.name) for field in fields(Given)})
    load = compare(given, [*systems(inputs), *others(inputs, given.work)])
    if OURS in load["saturated"] and not given.peers:
        bundle, queries = Bundle.open(given.bundle).path, read_texts(given.queries, given.seed)
        memory = processes(bundle, queries, given.seconds)
        load["own"] = {"ready_s": start_times(bundle, given.rounds), "processes": memory}
    write(given.output, load)
    rows = [row for row in goal_rows(load) if row["key"] == "peers" or not given.peers]
    record(given.speed or given.output / "speed.json", rows, given.command)


if __name__ == "__main__":
    sys.exit(main())
