"""Compare the service with models in its query path and other engines under load, in turns.

    python -m research.servers BUNDLE --queries FOLDER --output docs/results/judged [--judged test] [--model MODEL] […]

Every system is a server process on this machine, started by one command, and gets the same queries over the same
documents; the load generator shares the machine. Runs alternate between the systems, round after round. Closed loops
find the highest throughput, open loops at a half of it the latencies. Writes OUTPUT/load.json with every run; lists a
system that can't be measured with the reason.
"""

import json
import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.request import Request, urlopen

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.runs import JudgedQueries, ndcg_per_query, read_judged
from lightretriever.loadtest.connection import LoadError, search_requests
from lightretriever.loadtest.generator import closed_loop, open_loop, read_texts, run_loop
from lightretriever.loadtest.process import Server, finish
from lightretriever.loadtest.program import QUERIES, option, program, typed_command
from research.record import origin, write_json
from research.servers.systems import INPUTS, System, systems

Row = dict[str, Any]
HALF: Final = 0.5
"""The rate of the open loops, as a part of a system's own highest throughput."""
_HITS: Final = 10
_MIN_ANSWERS: Final = {"p99_ms": 100}


def compare(given: Namespace) -> Row:
    """Start all systems that are asked for and can start, measure them in turn, and return the content of `load.json`.
    Raise LoadError for an unknown name, and if no system can start."""
    offered = list(systems(given))
    names = [system.name for system in offered]
    only = names if given.systems is None else given.systems.split(",")
    if unknown := sorted(set(only) - set(names)):
        raise LoadError(f"{', '.join(unknown)}: no such system.", remedy=f"The systems are {', '.join(names)}.")
    queries, manifest = read_texts(given.queries, given.seed), Bundle.open(given.bundle).manifest
    judged = None if given.judged is None else read_judged(given.queries, given.judged)
    described, servers = list[Row](), dict[str, Server]()
    with ExitStack() as stack:
        for system in offered:
            row: Row = {"name": system.name, "label": system.label}
            started = _start(system, given.limit_s, stack) if system.name in only else "not asked for (--systems)"
            if isinstance(started, Server):
                servers[system.name] = started
                command = typed_command(["python", *system.command[1:]])
                row |= {"what": system.what, "command": command, "ready_s": round(started.ready_s, 2)}
            else:
                row["left_out"] = started
            described.append(row)
        if not servers:
            raise LoadError("No system could be started.", remedy="; ".join(row["left_out"] for row in described))
        measured = _measure(servers, queries, given, judged)
    bundle = {"name": manifest.name, "corpus": manifest.corpus.name, "documents": manifest.documents}
    plan = ("warm_up_s", "seconds", "rounds", "concurrencies", "limit_s")
    return origin() | {
        "command": given.command,
        "bundle": bundle,
        "queries": {"name": given.queries.name, "count": len(queries)},
        "plan": {name: getattr(given, name) for name in plan},
        "systems": described,
        **measured,
    }


def _start(system: System, limit_s: float, stack: ExitStack) -> Server | str:
    """Build a system's index and start its server, which ends with the `stack`; return the reason if it can't start."""
    if system.missing is not None:
        return system.missing
    print(f"starting {system.name}", file=sys.stderr)
    # Every connection of the generator may wait, so that slow systems are measured, not refused.
    settings = {"LIGHTRETRIEVER_DEADLINE_MS": f"{limit_s * 1e3:.0f}", "LIGHTRETRIEVER_MAX_WAITING": "256"}
    settings["LANCEDB_LOG"] = "error"  # else it writes two warnings a query
    try:
        if system.prepare:
            finish(system.prepare)
        return stack.enter_context(Server([*system.command, "--port", "0"], environment=settings))
    except LoadError as error:
        # Paths of this machine's folders don't belong in a result.
        return f"it did not start: {re.sub(r'/[^ ]*/', '', error.message)}"


def _measure(
    servers: Mapping[str, Server], queries: Sequence[str], given: Namespace, judged: JudgedQueries | None
) -> Row:
    """Return rows of `closed` and `open` loops, `saturated` (answers a second by system), `memory_mb` at the end, and
    `ndcg`, nDCG@10 of the answers, if there are judgments."""
    quality = {name: round(_ndcg(server.url, judged), 4) for name, server in servers.items()} if judged else {}
    requests = {name: search_requests(server.url, queries, {"k": _HITS}) for name, server in servers.items()}

    def run(name: str, turn: int, **load: Any) -> Row:
        """Run a loop from another query in each turn. `server_us`: the server's processor time of a request."""
        server, first = servers[name], len(queries) * turn // given.rounds
        loop = open_loop if "rate" in load else closed_loop
        rotated = requests[name][first:] + requests[name][:first]
        work = loop(server.url, rotated, limit_s=given.limit_s, **load)
        used = server.cpu_s()
        result = run_loop(work, on_time="rate" in load)
        result["server_us"] = round((server.cpu_s() - used) / result["sent"] * 1e6, 1)
        print(f"{name}: {json.dumps(result)}", file=sys.stderr)
        return {"system": name, "round": turn, **result}

    for name in servers:  # Java compiles what it runs often
        run(name, 0, connections=max(given.concurrencies), seconds=given.warm_up_s)
    turns = range(given.rounds)
    closed = [
        run(name, turn, connections=count, seconds=given.seconds)
        for turn in turns
        for count in given.concurrencies
        for name in servers
    ]
    highest = saturated(closed)
    opened = [
        run(name, turn, rate=round(HALF * highest[name], 3), seconds=given.seconds) | {"of": HALF}
        for turn in turns
        for name in servers
        if highest[name]
    ]
    memory = {name: server.memory_mb() for name, server in servers.items()}
    rows = {"closed": closed, "open": opened, "saturated": highest, "memory_mb": memory}
    return rows | ({"ndcg": quality} if judged else {})


def saturated(closed: Sequence[Row]) -> dict[str, float]:
    """Return each system's highest answers a second: the median over the rounds, at its best concurrency."""
    found = dict[str, dict[int, list[float]]]()
    for row in closed:
        found.setdefault(row["system"], {}).setdefault(row["connections"], []).append(row["qps"])
    return {system: max(map(median, by_count.values())) for system, by_count in found.items()}


def _ndcg(url: str, judged: JudgedQueries) -> float:
    """Return the mean nDCG@10 of a server's answers to judged queries."""
    run = {}
    for number, text in judged.queries.items():
        body = json.dumps({"query": text, "k": _HITS}).encode()
        with urlopen(Request(f"{url}/search", body, {"content-type": "application/json"})) as answer:
            hits = json.load(answer)["hits"]
        run[number] = [(hit["id"], float(-rank)) for rank, hit in enumerate(hits)]
    values = ndcg_per_query(judged.qrels, run).values()
    return sum(values) / len(values)


def load_table(load: Row, averages: Mapping[str, float] | None = None) -> list[str]:
    """Return a `load.json` as lines of a Markdown table, fastest system first: medians over the rounds. `averages` of
    nDCG@10 over several sets stand before that of the judged queries.

    A p99 of fewer than 100 answers is left out: it is the slowest answer's time, which is not
    reproducible.
    """
    heads = ["one process each", "requests/s", "p50 ms at half of them", "p99 ms at half of them", "memory MiB"]
    heads += ["nDCG@10"] * ("ndcg" in load) + ["nDCG@10, average of 7 sets"] * (averages is not None)
    lines = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    labels = {row["name"]: row["label"] for row in load["systems"]}
    for name, highest in sorted(load["saturated"].items(), key=lambda item: -item[1]):
        half = [row for row in load["open"] if (row["system"], row["of"]) == (name, HALF)]
        cells: list[float | None] = [highest, _median(half, "p50_ms"), _median(half, "p99_ms")]
        cells += [round(load["memory_mb"][name])]
        cells += [load["ndcg"][name]] if "ndcg" in load else []
        cells += [] if averages is None else [averages.get(name)]
        values = ("–" if cell is None else f"{cell:,.3g}" if cell < 1000 else f"{cell:,.0f}" for cell in cells)
        lines.append(f"| {labels[name]} | {' | '.join(values)} |")
    return lines


def _median(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row["answered"] >= _MIN_ANSWERS.get(key, 1) and key in row]
    return median(values) if values else None


@program(
    *INPUTS,
    QUERIES,
    option("--output", Path, "folder of the results"),
    option("--systems", None, "which systems, separated by commas (all)"),
    option("--warm-up-s", 15.0, "seconds of searches in every system before it is measured"),
    option("--seconds", 10.0, "length of every run"),
    option("--rounds", 3, "how often everything is measured"),
    option("--concurrencies", [1, 4, 16, 64], "requests under way in closed loops"),
    option("--judged", None, "split of the folder's judgments of the corpus: measure nDCG@10, too"),
    option("--limit-s", 30.0, "longest wait for an answer"),
    option("--seed", 7, "order of the queries"),
)
def main(given: Namespace) -> None:
    """Measure and write."""
    load = compare(given)
    given.output.mkdir(parents=True, exist_ok=True)
    write_json(given.output / "load.json", load)
    print("\n".join(load_table(load)))


if __name__ == "__main__":
    sys.exit(main())
