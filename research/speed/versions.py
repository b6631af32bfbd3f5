"""Compare versions of the service, or bundles of one version, in one run that alternates between them.

    python -m research.speed.versions --name demo --queries FOLDER --results docs/results/versions.json \\
        --side before OLD/.venv/bin/python OLD/demo/bundle \\
        --side after .venv/bin/python demo/bundle

A side is a name, an interpreter (or the `lightretriever` command beside it) and a bundle. Every side searches in
process, then over HTTP, in turns of a few questions, so a disturbance of the machine affects all sides. Ratios refer to
the first side. Needs httpx2, which the development setup installs.

in_process             `SearchEngine.search`, one search after the other
dense, sparse_alone    each leg alone, with the same vectors
httpx, http            a client of httpx2, and the load generator with one connection: one request after the other
saturated              the load generator with `--connections` requests always in flight
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Self

from lightretriever.loadtest.connection import LoadError, search_requests
from lightretriever.loadtest.generator import closed_loop, read_texts, run_loop
from lightretriever.loadtest.process import Server
from lightretriever.loadtest.program import QUERIES, option, program
from lightretriever.loadtest.record import commit, four_digits, latency, median, origin, write_json
from research.harness.turns import Turns, Worker, in_turns
from research.pages.run_tables import versions_tables

__all__ = ["Plan", "Side", "compare", "main", "ratios"]

WORKER: Final = """
import gc, importlib.metadata, json, platform, sys
from pathlib import Path
from time import perf_counter
import faiss, numpy as np
try:
    from lightretriever.artifacts.bundle.reader import Bundle
    from lightretriever.service.schemas import SearchRequest
    from lightretriever.service.search.engine import SearchEngine
except ModuleNotFoundError:  # before everything lay below one import name
    from artifacts.bundle import Bundle
    from service.engine import SearchEngine
    from service.schemas import SearchRequest

def say(content):
    print(json.dumps(content), flush=True)

def timed(work, values):
    seconds, results = [], []
    for value in values:
        begun = perf_counter()
        results.append(work(value))
        seconds.append(perf_counter() - begun)
    return seconds, results

def vectors(text):
    terms, counts = np.unique(tokenizer.encode(text), return_counts=True)
    mean = counts.astype(np.float32) @ table.rows(terms)
    length = max(float(np.linalg.norm(mean)), 1e-12)
    if vocabulary is not None:
        terms, counts = np.unique(vocabulary.terms_of([text])[0], return_counts=True)
        known = [one if vocabulary.language is None else vocabulary.token_of(one) for one in terms]
        factors = [1 if idf is None or one is None else idf[int(one)] for one in known]
        return mean / length, terms, counts.astype(np.float32) * np.array(factors, np.float32)
    if own is not None:
        terms, counts = np.unique(own.encode(text), return_counts=True)
    weights = counts.astype(np.float32) * (1 if idf is None else idf[terms])
    return mean / length, terms.astype(np.int32), weights.astype(np.float32)

k = 100
bundle = Bundle.open(Path(sys.argv[1]))
tokenizer, idf = bundle.tokenizer(), bundle.idf()
vocabulary = bundle.vocabulary(tokenizer) if hasattr(bundle, "vocabulary") else None
own = bundle.sparse_tokenizer() if hasattr(bundle, "sparse_tokenizer") else None  # before terms were texts
table = bundle.table(bundle.manifest.default_task)
with SearchEngine.open(bundle) as engine, bundle.sparse() as sparse:
    dense = bundle.dense()
    engine.warm_up()
    gc.collect()
    gc.freeze()
    versions = {"pyserini": importlib.metadata.version("pyserini")}
    versions |= {"faiss": faiss.__version__, "python": platform.python_version()}
    say({"documents": bundle.manifest.documents, "dense": bundle.manifest.dense.factory, "versions": versions})
    for line in sys.stdin:
        texts = json.loads(line)
        encoded = [vectors(text) for text in texts]
        search, answers = timed(engine.search, [SearchRequest(query=text) for text in texts])
        of_dense, _ = timed(lambda one: dense.search(one[0], k), encoded)
        of_sparse, _ = timed(lambda one: sparse.search(one[1], one[2], k), encoded)
        if any(answer.degraded for answer in answers):
            raise RuntimeError("a leg is missing in an answer: the machine is too slow for the deadline")
        say({"in_process": search, "dense_alone": of_dense, "sparse_alone": of_sparse})
"""
"""Program for the interpreter of a side: describes it, and times the questions of each line of stdin, in seconds."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """One version with one bundle. `python` is its interpreter: absolute, with links, as in a virtual environment."""

    name: str
    python: Path
    bundle: Path

    @classmethod
    def of(cls, name: str, program: str, bundle: str) -> Self:
        """Take an interpreter, or the command `lightretriever` beside it. Raises LoadError if a file is missing."""
        path = Path(os.path.abspath(program))  # noqa: PTH100 -- resolve() would leave the virtual environment
        side = cls(name, path.with_name("python") if path.name == "lightretriever" else path, Path(bundle).resolve())
        for file in (side.python, side.command, side.bundle / "manifest.json"):
            if not file.is_file():
                raise LoadError(f"--side {name}: there is no {file}.", remedy="Give NAME INTERPRETER BUNDLE.")
        return side

    @property
    def command(self) -> Path:
        """The version's `lightretriever`."""
        return self.python.with_name("lightretriever")

    def worker(self) -> Worker:
        """Search in process, in the interpreter of the side. Facts: documents, dense index and versions. Answers for n
        texts: seconds (n,) of `in_process`, `dense_alone` and `sparse_alone`. Raises LoadError as `Worker` does."""
        return Worker(self.name, [str(self.python), "-P", "-c", WORKER, str(self.bundle)])


@dataclass(frozen=True)
class Plan(Turns):
    """The extent of a measurement: seconds of a run over HTTP, connections to saturate a server, and its worker
    processes."""

    seconds: float = 1.0
    connections: int = 16
    workers: int = 1


def compare(sides: Sequence[Side], texts: Sequence[str], plan: Plan) -> list[Row]:
    """Measure all sides in turns: one row each. Raises LoadError if a side can't run or does not answer in full.

    Times in process and with httpx are quantiles of all searches; all others are the median of the turns.
    """
    if not texts:
        raise LoadError("There is nothing to search for.", remedy="Give a folder with queries.")
    try:
        httpx = import_module("httpx2")
    except ModuleNotFoundError as error:
        raise LoadError("httpx2 is not installed.", remedy="Run deploy/install/install dev.") from error
    rows: list[Row] = [{"name": side.name, "commit": commit(side.python.parent)} for side in sides]
    with ExitStack() as stack:
        workers = [stack.enter_context(side.worker()) for side in sides]
        turns = in_turns(len(sides), plan, lambda side, turn: workers[side].ask(plan.of(texts, turn)))
        for row, worker, found in zip(rows, workers, turns, strict=True):
            row |= worker.facts | _quantiles(found)
            slower = max(row["dense_alone_p50_ms"], row["sparse_alone_p50_ms"])
            row["over_slower_leg"] = four_digits(row["in_process_p50_ms"] / slower)
    with ExitStack() as stack:
        options = ["--port", "0", "--workers", str(plan.workers)]
        commands = [[str(side.command), "serve", str(side.bundle), *options] for side in sides]
        servers = [stack.enter_context(Server(command)) for command in commands]
        turns = in_turns(len(sides), plan, lambda side, turn: _over_http(servers[side], plan, httpx, texts, turn))
        for row, found in zip(rows, turns, strict=True):
            row |= _quantiles([{"httpx": one.pop("httpx")} for one in found])
            row |= {name: median([one[name] for one in found]) for name in found[0]}
    return rows


def _over_http(server: Server, plan: Plan, httpx: Any, texts: Sequence[str], turn: int) -> Row:
    """Run one turn over HTTP: seconds (n,) of `httpx`, ms of the rest, processor time per request, memory in MiB."""
    asked = plan.of(texts, turn)
    seconds = []
    with httpx.Client(base_url=server.url) as client:
        for text in asked:
            begun = perf_counter()
            client.post("/search", json={"query": text}).raise_for_status()
            seconds.append(perf_counter() - begun)
    one, used = _closed(server, asked, 1, plan.seconds), server.cpu_s()
    many = _closed(server, asked, plan.connections, plan.seconds)
    cost = {"saturated_cpu_ms": (server.cpu_s() - used) / many["sent"] * 1e3, "rss_mb": server.memory_mb()["rss"]}
    times = {"http_p50_ms": one["p50_ms"], "http_p99_ms": one["p99_ms"]}
    return {"httpx": seconds, **times, "saturated_qps": many["qps"], "saturated_p99_ms": many["p99_ms"], **cost}


def _closed(server: Server, texts: Sequence[str], connections: int, seconds: float) -> Row:
    work = closed_loop(server.url, search_requests(server.url, texts), connections=connections, seconds=seconds)
    run = run_loop(work, on_time=False)
    if run["answered"] - run["degraded"] < run["sent"]:
        raise LoadError(f"Not every request was answered in full: {run}.", remedy="Give fewer --connections.")
    return run


def _quantiles(turns: Sequence[Row]) -> Row:
    """Give p50 and p99 in ms of seconds by name, over all turns."""
    found = {name: latency([second for turn in turns for second in turn[name]], 1e3) for name in turns[0]}
    return {f"{name}_{share}_ms": times[share] for name, times in found.items() for share in ("p50", "p99")}


def ratios(rows: Sequence[Row]) -> list[Row]:
    """Give the figures of every side after the first, divided by the first side's."""
    first, *others = rows
    names = [name for name, value in first.items() if isinstance(value, float)]
    return [{"name": row["name"]} | {name: round(row[name] / first[name], 3) for name in names} for row in others]


@program(
    option("--side", None, action="append", nargs=3, required=True, metavar=("NAME", "PYTHON", "BUNDLE")),
    option("--name", str, "the corpus, such as demo: a run with this name is replaced"),
    QUERIES,
    option("--results", Path, "JSON file, such as docs/results/versions.json"),
    option("--turns", 10, "turns of every side"),
    option("--warm-up", 10, "turns before, not counted"),
    option("--questions", 100, "questions a turn"),
    option("--seconds", 1.0, "length of a run over HTTP"),
    option("--connections", 16, "requests at once that saturate a server"),
    option("--workers", 1, "worker processes of every server"),
    option("--seed", 7, "order of the questions"),
)
def main(given: Namespace) -> None:
    """Compare, print and write."""
    plan = Plan(given.turns, given.warm_up, given.questions, given.seconds, given.connections, given.workers)
    sides, texts = [Side.of(*side) for side in given.side], read_texts(given.queries, given.seed)
    rows = compare(sides, texts, plan)
    run: Row = {**origin(), "command": given.command, "queries": given.queries.name}
    run |= {"plan": vars(plan), "sides": rows, "ratios": ratios(rows)}
    content = json.loads(given.results.read_text(encoding="utf-8")) if given.results.is_file() else {"runs": {}}
    content["runs"][given.name] = run
    write_json(given.results, content)
    print("\n".join(versions_tables(given.results)))


if __name__ == "__main__":
    sys.exit(main())
