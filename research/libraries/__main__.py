"""Compare the two legs with other libraries.

    python -m research.libraries BUNDLE --queries FOLDER --layout FOLDER --work FOLDER \\
        --results docs/results/speed.json [--only sparse,dense or names] [--judged] [--build] [--turns 0]

Every library is a process that searches on one thread for the same encoded queries, over an index of the same impacts
or vectors. One half of the queries chooses among a library's settings: the fastest that finds at least 0.95 of the
exact best 100. With `--judged` FOLDER has judgments of the bundle's corpus, all its judged queries are used for both,
and a setting is as good if its nDCG@10 is within 0.002 of an exact search. The other half is measured, in turns of a
few queries. `--build` only builds the indexes, `--turns 0` only chooses settings; both are kept in `--work`.
"""

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.runs import read_judged
from lightretriever.loadtest.connection import LoadError
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.process import python
from lightretriever.loadtest.program import BUNDLE, QUERIES, SPEED, option, program
from lightretriever.loadtest.record import four_digits, latency, write_json
from research.harness.rows import record
from research.harness.turns import Turns, Worker, in_turns
from research.libraries.library import Query, Row, Source, encode
from research.libraries.quality import LEAST_RECALL, NDCG_LOSS, Exact, Judged, choose, front, ratio
from research.libraries.worker import LIBRARIES
from research.pages.speed_tables import RATIOS, library_tables
from research.servers.bundle_documents import folder_of

__all__ = ["Comparison", "main"]


@dataclass(frozen=True)
class Comparison:
    """One leg: the queries that choose settings and those that are measured, by their number in `exact`."""

    leg: str
    source: Source
    layout: Path | None
    queries: Sequence[Query]
    tuned: Sequence[int]
    measured: Sequence[int]
    exact: Exact
    judged: Judged | None = None

    @property
    def measure(self) -> str:
        """What is to be equal."""
        return "recall@100" if self.judged is None else "ndcg@10"

    def builds(self, name: str) -> Sequence[Row]:
        """Give the settings of a library's indexes."""
        manifest = self.source.bundle.manifest
        return LIBRARIES[self.leg][name].builds(manifest.documents, manifest.dimension)

    def start(self, name: str, build: Row) -> Worker:
        """Start the process of a library. Raises LoadError if it can't open its index."""
        paths = {"bundle": self.source.bundle.path.resolve(), "work": self.source.work.resolve(), "layout": self.layout}
        given = {"name": name, "build": build} | {key: path and str(path) for key, path in paths.items()}
        return Worker(name, python("research.libraries.worker", json.dumps(given)))

    def ask(self, worker: Worker, setting: Row, numbers: Sequence[int]) -> Row:
        """Search for queries: `seconds`, and the mean `recall@100`, and `ndcg@10` if there are judgments."""
        answer = worker.ask({"setting": setting, "queries": [self.queries[n].row() for n in numbers]})
        pairs = list(zip(numbers, answer["found"], strict=True))
        row = {"seconds": answer["seconds"], "recall@100": float(np.mean([self.exact.recall(*one) for one in pairs]))}
        return row if self.judged is None else row | {"ndcg@10": self.judged.ndcg(dict(pairs))}

    def tune(self, name: str) -> Row:
        """Give `curve`, a row per index and setting, `version`, and `reasons` of indexes that can't be used; from
        `--work` if it is there."""
        asked = [self.queries[n].text for n in self.tuned]
        file = folder_of(self.source.work, self.source.bundle, "curves") / f"{name}.json"
        if file.is_file():
            kept: Row = json.loads(file.read_text(encoding="utf-8"))
            if kept["queries"] == asked:
                return kept
        found: Row = {"version": None, "curve": [], "reasons": {}, "queries": asked}
        for build in self.builds(name):
            try:
                with self.start(name, build) as worker:
                    found["version"] = worker.facts["version"]
                    self.ask(worker, worker.facts["settings"][0], self.tuned)  # warms it up
                    for setting in worker.facts["settings"]:
                        answer = self.ask(worker, setting, self.tuned)
                        p50 = latency(answer.pop("seconds"), 1e3)["p50"]
                        figures = {key: round(value, 4) for key, value in answer.items()}
                        found["curve"].append({"build": build, "search": setting, "p50_ms": p50, **figures})
            except LoadError as error:
                found["reasons"][" ".join(map(str, build.values()))] = str(error).splitlines()[-1]
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, found)
        return found

    def least(self) -> float:
        """Give the bound that a setting has to reach."""
        if self.judged is None:
            return LEAST_RECALL
        return self.judged.ndcg({n: self.exact.best[n].tolist() for n in self.tuned}) - NDCG_LOSS

    def run(self, names: Sequence[str], plan: Turns) -> list[Row]:
        """Choose settings and measure: a row for each library, then a row for each ratio."""
        rows = {name: self.tune(name) for name in names}
        label, least = self._label(), self.least()
        for name, row in rows.items():
            del row["queries"]
            row |= {"key": "library", "leg": self.leg, "name": name, "corpus": label, "setting": f"{name}, {label}"}
            row["unit"], row["package"] = "ms", LIBRARIES[self.leg][name].package
            if row["curve"]:
                row["chosen"] = choose(row["curve"], self.measure, -1 if name == "bm25" else least)
                row["curve"] = front(row["curve"], self.measure)
        there = [name for name, row in rows.items() if row["curve"]]
        if not plan.turns:
            return list(rows.values())
        with ExitStack() as stack:
            chosen = [rows[name]["chosen"] for name in there]
            workers = [
                stack.enter_context(self.start(name, row["build"])) for name, row in zip(there, chosen, strict=True)
            ]
            turns = in_turns(
                len(there),
                plan,
                lambda side, turn: self.ask(workers[side], chosen[side]["search"], plan.of(self.measured, turn)),
            )
        seconds: dict[str, Sequence[Sequence[float]]] = {}
        for name, found in zip(there, turns, strict=True):
            seconds[name] = [one.pop("seconds") for one in found]
            rows[name] |= latency(seconds[name], 1e3) | {"qps": four_digits(1 / float(np.mean(seconds[name])))}
            rows[name] |= {key: round(float(np.mean([one[key] for one in found])), 4) for key in found[0]}
            rows[name] |= {"turns": plan.turns, "questions": plan.questions}
        return [*rows.values(), *ratios(self.leg, label, rows, seconds)]

    def _label(self) -> str:
        manifest = self.source.bundle.manifest
        sparse = manifest.sparse
        kind = f", {sparse.impacts} impacts of {sparse.vocabulary}" if self.leg == "sparse" else ""
        equal = "" if self.judged is None else ", equal nDCG@10"
        return f"{manifest.corpus.name}, {manifest.documents:,} documents{kind}{equal}"


def ratios(leg: str, label: str, rows: dict[str, Row], seconds: dict[str, Sequence[Sequence[float]]]) -> list[Row]:
    """Compare the libraries that were measured, as `RATIOS` says: a row for each, with its interval of 95 %."""
    found = []
    for key, goal in RATIOS.items():
        rivals = [name for name in goal.rivals if name in seconds]
        if goal.leg != leg or goal.ours not in seconds or not rivals:
            continue
        against = max(rivals, key=lambda name: (rows[name]["chosen"]["equal"], rows[name]["qps"]))
        pair = (seconds[goal.ours], seconds[against])
        row: Row = {"key": key, "setting": label, "unit": "ratio", "against": against}
        row["equal"] = rows[against]["chosen"]["equal"]
        for figure in goal.figures:
            of_times = np.mean if figure == "qps" else partial(np.percentile, q=int(figure[1:]))
            ours, theirs = reversed(pair) if figure == "qps" else pair
            value, low, high = ratio(ours, theirs, of_times)
            row |= {figure: four_digits(value), f"{figure}_interval": [four_digits(low), four_digits(high)]}
        found.append(row)
    return found


def _comparisons(given: Namespace, legs: Sequence[str]) -> list[Comparison]:
    bundle = Bundle.open(given.bundle)
    source = Source(bundle, given.work, read_texts(given.layout, 0) if given.layout else [])
    judged = None
    if given.judged:
        sets = read_judged(given.queries, given.split)
        by_text = {text: sets.qrels[number] for number, text in sets.queries.items()}
        queries = encode(bundle, list(by_text))
        with bundle.sparse() as index:
            judged = Judged([by_text[query.text] for query in queries], index.ids())
        tuned = measured = range(len(queries))
    else:
        count = given.turns * given.questions or given.questions
        queries = encode(bundle, read_texts(given.queries, given.seed)[: 2 * max(count, given.tuning)])
        tuned, measured = range(0, len(queries), 2)[: given.tuning], range(1, len(queries), 2)
    layout = given.layout and given.layout.resolve()
    kinds = {"sparse": Exact.sparse, "dense": Exact.dense}
    return [
        Comparison(leg, source, layout, queries, tuned, measured, kinds[leg](source, queries), judged) for leg in legs
    ]


def build(one: Comparison, names: Sequence[str]) -> None:
    """Build all indexes, and say which can't be built."""
    for name in names:
        for settings in one.builds(name):
            try:
                one.start(name, settings).close()
                print(f"{name} {settings}: built", flush=True)
            except LoadError as error:
                print(f"{name} {settings}: {error}", flush=True)


@program(
    BUNDLE,
    QUERIES,
    option("--judged", False, "choose by nDCG@10: the folder has judgments"),
    option("--split", "dev", "split of the judgments, which choose settings"),
    option("--layout", None, "folder with other queries, to lay out the dense index by", type=Path),
    option("--work", Path, "folder for the libraries' indexes"),
    option("--only", "sparse,dense", "legs and names of libraries, with commas"),
    option("--build", False, "only build the indexes"),
    option("--turns", 20, "turns of every library; 0: only choose"),
    option("--warm-up", 10, "turns before, not counted"),
    option("--questions", 25, "questions a turn"),
    option("--tuning", 100, "questions to choose settings with"),
    option("--seed", 7, "order of the questions"),
    SPEED,
)
def main(given: Namespace) -> None:
    """Build, choose, measure and record."""
    only = given.only.split(",")
    names = {leg: [name for name in kinds if {leg, name} & {*only}] for leg, kinds in LIBRARIES.items()}
    plan = Turns(given.turns, given.warm_up, given.questions)
    rows: list[Row] = []
    for one in _comparisons(given, [leg for leg in names if names[leg]]):
        if given.build:
            build(one, names[one.leg])
        else:
            rows += one.run(names[one.leg], plan)
    for row in rows:
        print(json.dumps({key: value for key, value in row.items() if key != "curve"}))
    if given.results is not None and given.turns and not given.build:
        record(given.results, rows, given.command)
        print("\n".join(library_tables(given.results)))


if __name__ == "__main__":
    sys.exit(main())
