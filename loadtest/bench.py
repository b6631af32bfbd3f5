"""Measure the service over a bundle under load, beside models in its query path.

    python -m lightretriever.loadtest.bench BUNDLE --queries FOLDER --output FOLDER [--model MODEL] […]

Every system is a server process on this machine, started by one command, and gets the same queries over the same
documents; the load generator shares the machine. Writes OUTPUT/load.json with every run, and from it OUTPUT/load.md.
Lists a system that can't be measured with the reason.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.runs import read_judged
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.measure import CONCURRENCIES, FRACTIONS, Plan, Running, measure, start
from lightretriever.loadtest.overlap import ExactAnswers
from lightretriever.loadtest.program import BUNDLE, MODEL, QUERIES, option, program, typed_command
from lightretriever.loadtest.record import origin, write_json
from lightretriever.loadtest.report import write_report
from lightretriever.loadtest.systems import Given, System, systems

__all__ = ["OPTIONS", "compare", "main", "write"]

OPTIONS: Final = (
    BUNDLE,
    QUERIES,
    option("--output", Path, "folder of the results"),
    *MODEL,
    option("--biencoder", None, "a folder of sentence-transformers"),
    option("--biencoder-bundle", None, "the bundle that it read the documents of", type=Path),
    option("--static-bundle", None, "a bundle of static embeddings with BM25 impacts", type=Path),
    option("--systems", None, "which systems, separated by commas (all)"),
    option("--warm-up-s", 15.0, "seconds of searches in every system before it is measured"),
    option("--seconds", 10.0, "length of every run"),
    option("--rounds", 3, "how often everything is measured"),
    option("--concurrencies", ",".join(map(str, CONCURRENCIES)), "requests under way in closed loops"),
    option("--fractions", ",".join(map(str, FRACTIONS)), "rates of open loops, of the highest throughput"),
    option("--compared", 100, "queries whose answers are compared"),
    option("--judged", None, "split of the folder's judgments of the corpus: measure nDCG@10, too"),
    option("--limit-s", 30.0, "longest wait for an answer"),
    option("--seed", 7, "order of the queries"),
)


def compare(given: Namespace, offered: Sequence[System]) -> dict[str, Any]:
    """Start all systems that are asked for and can start, measure them in turn, and give the content of `load.json`.
    Raises LoadError for an unknown name, and if no system can start."""
    names = [system.name for system in offered]
    only = names if given.systems is None else given.systems.split(",")
    if unknown := sorted(set(only) - set(names)):
        raise LoadError(f"{', '.join(unknown)}: no such system.", remedy=f"The systems are {', '.join(names)}.")
    queries, manifest = read_texts(given.queries, given.seed), Bundle.open(given.bundle).manifest
    loads = tuple(map(int, given.concurrencies.split(","))), tuple(map(float, given.fractions.split(",")))
    plan = Plan(given.warm_up_s, given.seconds, given.rounds, given.limit_s, 10, *loads, given.compared)
    judged = None if given.judged is None else read_judged(given.queries, given.judged)
    described: list[dict[str, Any]] = []
    with ExitStack() as stack:
        running = []
        for system in offered:
            asked = system.name in only
            started = start(system, plan.limit_s, stack) if asked else "not asked for (--systems)"
            if not isinstance(started, Running):
                described.append({"name": system.name, "label": system.label, "left_out": started})
                continue
            running.append(started)
            command = typed_command(["python", *system.command[1:]])
            what = {"name": system.name, "label": system.label, "what": system.what, "command": command}
            described.append(what | {"ready_s": round(started.server.ready_s, 2)})
        if not running:
            raise LoadError("No system could be started.", remedy="; ".join(one["left_out"] for one in described))
        exact = ExactAnswers.of(Bundle.open(given.bundle), queries[: plan.compared], plan.k)
        measured = measure(running, queries, plan, exact, judged)
    bundle = {"name": manifest.name, "corpus": manifest.corpus.name, "documents": manifest.documents}
    return origin() | {
        "command": given.command,
        "bundle": bundle | {"dimension": manifest.dimension},
        "queries": {"name": given.queries.name, "count": len(queries)},
        "model": None if given.model is None else Path(given.model).name,
        "plan": asdict(plan),
        "systems": described,
        **measured,
    }


def write(output: Path, load: dict[str, Any]) -> None:
    """Write `load.json` and `load.md` into a folder."""
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / "load.json", load)
    print(write_report(output / "load.json"))


@program(*OPTIONS)
def main(given: Namespace) -> None:
    """Measure and write."""
    inputs = Given(**{field.name: getattr(given, field.name) for field in fields(Given)})
    write(given.output, compare(given, list(systems(inputs))))


if __name__ == "__main__":
    sys.exit(main())
