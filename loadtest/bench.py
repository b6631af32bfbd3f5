"""The comparison of the service with other systems under load: measure, record, report (`make bench`).

    python -m lightretriever.loadtest.bench BUNDLE --queries FOLDER --output docs/results [--model MODEL] […]

Every system is a server process on this machine, started by one command, and gets the same queries over the same
documents; the load generator shares the machine. Writes OUTPUT/load.json with every run, the service's rows in
OUTPUT/speed.json, and from both OUTPUT/load.md. Lists a system that can't be measured with the reason.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.quality import typed_command
from lightretriever.artifacts.evaluation.runs import JudgedQueries, read_judged
from lightretriever.artifacts.signals import stoppable
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.counters import median_of
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.measure import CONCURRENCIES, FRACTIONS, Plan, measure, start
from lightretriever.loadtest.overlap import ExactAnswers
from lightretriever.loadtest.record import four_digits, origin, record, typed, write_json
from lightretriever.loadtest.report import write_report
from lightretriever.loadtest.service_costs import processes, start_times
from lightretriever.loadtest.systems import (
    LLM,
    NAMES,
    OURS,
    PEERS,
    PROCESSES,
    Given,
    LeftOut,
    systems,
)

__all__ = ["goal_rows", "main"]

T = TypeVar("T", int, float)


def run(
    given: Given, queries: Sequence[str], plan: Plan, only: tuple[str, ...], judged: JudgedQueries | None
) -> dict[str, Any]:
    """Start all systems that can start, measure them in turn, and give the content of `load.json`, without origin."""
    described: list[dict[str, Any]] = []
    with ExitStack() as stack:
        running = []
        for system in systems(given, only):
            started = start(system, plan.limit_s, stack)
            if isinstance(started, LeftOut):
                described.append({"name": started.name, "label": started.label, "left_out": started.reason})
                continue
            running.append(started)
            what = {name: getattr(started.system, name) for name in ("name", "label", "what")}
            command = typed_command(["python", *started.system.command[1:]])
            described.append(what | {"command": command, "ready_s": round(started.server.ready_s, 2)})
        if not running:
            raise LoadError("No system could be started.", remedy="; ".join(one["left_out"] for one in described))
        exact = ExactAnswers.of(Bundle.open(given.bundle), queries[: plan.compared], plan.k)
        measured = measure(running, queries, plan, exact, judged)
    return {"systems": described, **measured}


def goal_rows(load: dict[str, Any]) -> list[dict[str, Any]]:
    """Derive the rows of `speed.json` from the measurements."""
    facts: dict[str, Any] = {"documents": load["bundle"]["documents"], "queries": load["queries"]["count"]}
    rows: list[dict[str, Any]] = []
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
    own = load.get("own")
    if own:
        times = [{"s": seconds} for seconds in own["ready_s"]]
        rows.append({"key": "ready_s", "unit": "s", "value": median_of(times, "s"), "runs": own["ready_s"], **facts})
        second = own["processes"][1]
        rows.append({"key": "second_process_mb", "unit": "MiB", "value": second["added_pss"], **second, **facts})
    return rows


def peer_rows(load: dict[str, Any], facts: dict[str, Any]) -> list[dict[str, Any]]:
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
        row: dict[str, Any] = {"key": "peers", "setting": f"{label} ({corpus})", "system": name, "unit": "times"}
        row["value"] = four_digits(highest[OURS] / highest[name])
        if (own := half[OURS]) and (theirs := half[name]):
            row["p99"] = four_digits(theirs / own)
        quality = {"overlap": load["overlap"][name], "our_overlap": load["overlap"][OURS]}
        if judged := load.get("ndcg"):
            quality |= {"ndcg": judged[name], "our_ndcg": judged[OURS]}
        rows.append({**row, **quality, "peer_qps": four_digits(highest[name]), **facts})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, record and report; returns the exit status."""
    given = _parser().parse_args(arguments)
    command = typed("lightretriever.loadtest.bench", arguments)
    try:
        load = _measured(given, command)
        given.output.mkdir(parents=True, exist_ok=True)
        file, speed = given.output / "load.json", given.speed or given.output / "speed.json"
        write_json(file, load)
        record(speed, [row for row in goal_rows(load) if row["key"] == "peers" or not given.peers], command)
        print(write_report(file, speed))
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _measured(given: argparse.Namespace, command: str) -> dict[str, Any]:
    queries = read_texts(given.queries, given.seed)
    manifest = Bundle.open(given.bundle).manifest
    loads = (_numbers(given.concurrencies, int), _numbers(given.fractions, float))
    plan = Plan(given.seconds, given.rounds, given.limit_s, 10, *loads, given.compared)
    compared = Given(**{field.name: getattr(given, field.name) for field in fields(Given)})
    about = origin() | {
        "command": command,
        "bundle": {
            "name": manifest.name,
            "corpus": manifest.corpus.name,
            "documents": manifest.documents,
            "dimension": manifest.dimension,
        },
        "queries": {"name": given.queries.name, "count": len(queries)},
        "model": None if given.model is None else Path(given.model).name,
        "plan": asdict(plan),
    }
    judged = None if given.judged is None else read_judged(given.queries, given.judged)
    load = about | run(compared, queries, plan, tuple(given.systems.split(",")), judged)
    if OURS in load["saturated"] and not given.peers:
        times, memory = start_times(given.bundle, plan.rounds), processes(given.bundle, queries, plan.seconds)
        load["own"] = {"ready_s": times, "processes": memory}
    return load


def _numbers(text: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    return tuple(map(kind, text.split(",")))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare the service with other systems under load.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--output", type=Path, required=True, help="folder of the results, such as docs/results")
    parser.add_argument("--speed", type=Path, help="file of the service's rows (OUTPUT/speed.json)")
    parser.add_argument("--work", type=Path, default=Path("runs/loadtest"), help="indexes of other systems")
    parser.add_argument("--model", help="the language model that read the documents")
    parser.add_argument("--adapter", help="its adapter")
    parser.add_argument("--bos-token", help="its first token, as in the bundle's recipe")
    parser.add_argument("--device", default="auto", help="where models run (auto: CUDA if there is one)")
    parser.add_argument("--biencoder", help="a folder of sentence-transformers")
    parser.add_argument("--biencoder-bundle", type=Path, help="the bundle that it read the documents of")
    parser.add_argument("--static-bundle", type=Path, help="a bundle of static embeddings with BM25 impacts")
    parser.add_argument("--systems", default=",".join(NAMES), help="which systems, separated by commas (all)")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of every run (10)")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (3)")
    many, parts = (",".join(map(str, values)) for values in (CONCURRENCIES, FRACTIONS))
    parser.add_argument("--concurrencies", default=many, help=f"requests under way in closed loops ({many})")
    parser.add_argument("--fractions", default=parts, help=f"rates of open loops, of the highest throughput ({parts})")
    parser.add_argument("--compared", type=int, default=100, help="queries whose answers are compared (100)")
    parser.add_argument("--peers", action="store_true", help="record ratios to peers alone, no costs of the service")
    parser.add_argument("--judged", help="split of the folder's judgments of the corpus: measure nDCG@10, too")
    parser.add_argument("--limit-s", type=float, default=30.0, help="longest wait for an answer (30)")
    parser.add_argument("--seed", type=int, default=7, help="order of the queries (7)")
    return parser


if __name__ == "__main__":
    with stoppable():  # its servers end with it
        sys.exit(main())
