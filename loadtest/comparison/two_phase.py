"""Two-phase search of the sparse leg against the exact search: what it loses, and what it saves.

    python -m lightretriever.loadtest.comparison.two_phase --results docs/results/two-phase.json \\
        --judged BUNDLE DATASET [--judged BUNDLE DATASET …]
    python -m lightretriever.loadtest.comparison.two_phase --results docs/results/two-phase.json \\
        --timed BUNDLE [--timed BUNDLE …] --queries FOLDER

For every cut (a share and a depth) each judged dataset gives the nDCG@10 of modes sparse and hybrid (0.7 dense, 0.3
sparse), and the share of the exact top 10 and top 100 that the sparse leg finds. Each timed bundle gives the same
shares, and the time of the sparse leg for the top 100: each query is searched exactly and at every cut in turn, after
a first round of all that reads every token's largest impact. A run replaces its part of the file.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.runs import Ranking, measure, ranking, read_judged
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.results.record import latency, origin, typed, write_json
from lightretriever.service.backends.base import Ordinals
from lightretriever.service.execution.memory import freeze_gc
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.two_phase import Phases
from lightretriever.service.settings import Settings

__all__ = ["CUTS", "judged_rows", "main", "timed_rows"]

CUTS: Final = [Phases(share, depth) for share, depth in product((0.5, 0.7, 0.8, 0.9, 0.95), (100, 200, 500))]
_TOP: Final = 100
_FUSION: Final = {"method": "linear", "weights": {"dense": 0.7, "sparse": 0.3}}
_SETTINGS: Final = Settings(deadline_ms=60_000.0)
Row = dict[str, Any]


def judged_rows(engine: SearchEngine, dataset: Path) -> Iterator[Row]:
    """Give a row for the exact search of a dataset, and one for each of `CUTS`."""
    judged = read_judged(dataset, "test")
    exact: dict[str, Ranking] = {}
    for cut in (None, *CUTS):
        runs: dict[str, dict[str, Ranking]] = {
            mode: {key: _hits(engine, text, mode, cut) for key, text in judged.queries.items()} for mode in _MODES
        }
        exact = exact or runs["sparse"]
        pairs = [([one for one, _ in runs["sparse"][key]], [one for one, _ in exact[key]]) for key in exact]
        measured = {f"{mode}_ndcg@10": round(measure(judged.qrels, run)["nDCG@10"], 4) for mode, run in runs.items()}
        yield {
            "bundle": engine.bundle.manifest.name,
            "dataset": dataset.name,
            "documents": engine.bundle.manifest.documents,
            "queries": len(judged.queries),
            **_cut(cut),
            **measured,
            **_found(pairs),
        }


_MODES: Final = ("sparse", "hybrid")


def _hits(engine: SearchEngine, text: str, mode: str, cut: Phases | None) -> list[tuple[str, float]]:
    k = _TOP if mode == "sparse" else 10
    asked = {"query": text, "mode": mode, "k": k, "candidates": _TOP, "fields": [], "fusion": _FUSION}
    phases = {} if cut is None else {"sparse_two_phase": cut._asdict()}
    hits = engine.answer(SearchRequest.model_validate({**asked, **phases, "allow_partial": False}))["hits"]
    return ranking([(hit["id"], hit["score"]) for hit in hits])


def timed_rows(engine: SearchEngine, texts: Sequence[str]) -> Iterator[Row]:
    """Give a row for the exact search of the sparse leg, and one for each of `CUTS`."""
    parts, task = engine.parts, engine.bundle.manifest.default_task
    leg, two_phase = parts.backends.legs["sparse"], parts.two_phase
    if two_phase is None:
        raise ValueError("a cluster searches in one phase")
    queries = [parts.encoder.encode(text, task, StageClock(), dense=False) for text in texts]
    began = perf_counter()
    for query in queries:  # reads every token's largest impact
        two_phase.search(query, _TOP, None, CUTS[0])
    first_s = perf_counter() - began
    cuts: list[Phases | None] = [None, *CUTS]
    seconds: list[list[float]] = [[] for _ in cuts]
    found: list[list[Ordinals]] = [[] for _ in cuts]
    for number, query in enumerate(queries):
        for place in np.roll(np.arange(len(cuts)), number).tolist():
            cut, began = cuts[place], perf_counter()
            one = leg.search(query, _TOP) if cut is None else two_phase.search(query, _TOP, None, cut)
            seconds[place].append(perf_counter() - began)
            found[place].append(one.ordinals)
    for place, cut in enumerate(cuts):
        pairs = [(some.tolist(), exact.tolist()) for some, exact in zip(found[place], found[0], strict=True)]
        yield {
            "bundle": engine.bundle.manifest.name,
            "backend": leg.backend,
            "documents": engine.bundle.manifest.documents,
            "queries": len(queries),
            "first_round_s": round(first_s, 2),
            **_cut(cut),
            **{f"{name}_ms": value for name, value in latency(seconds[place], 1e3).items()},
            **_found(pairs),
        }


def _cut(cut: Phases | None) -> Row:
    return {"share": None, "depth": None} if cut is None else cut._asdict()


def _found(pairs: Sequence[tuple[Sequence[object], Sequence[object]]]) -> Row:
    """Give the mean share of the exact top 10 and top 100 that was found in as many places; `pairs` are of the found
    and the exact documents of a query, best first. Queries that find nothing don't count."""
    tops = {}
    for top in (10, _TOP):
        shares = [len(set(some[:top]) & set(exact[:top])) / len(exact[:top]) for some, exact in pairs if exact]
        tops[f"of_top_{top}"] = round(float(np.mean(shares)), 4)
    return tops


def _opened(path: Path) -> SearchEngine:
    engine = SearchEngine.open(Bundle.open(path), _SETTINGS, hashed=False)
    engine.warm_up()
    return engine


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and record; returns the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.timed and given.queries is None:
        parser.error("--timed needs --queries")
    judged: list[Row] = []
    timed: list[Row] = []
    try:
        texts = [] if given.queries is None else read_texts(given.queries, given.seed)[: given.count]
        for bundle, dataset in given.judged:
            with _opened(bundle) as engine:
                judged += judged_rows(engine, dataset)
        for bundle in given.timed:
            with _opened(bundle) as engine:
                freeze_gc()  # as the service does
                timed += timed_rows(engine, texts)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in [*judged, *timed]:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    made = {**origin(), "command": typed("comparison.two_phase", arguments)}
    content = json.loads(given.results.read_bytes()) if given.results.is_file() else {}
    parts = {"judged": judged, "timed": timed}
    write_json(given.results, content | {name: {**made, "rows": rows} for name, rows in parts.items() if rows})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Two-phase search of the sparse leg against the exact search.")
    parser.add_argument(
        "--judged", type=Path, nargs=2, action="append", default=[], help="bundle, and its dataset in BEIR layout"
    )
    parser.add_argument("--timed", type=Path, action="append", default=[], help="bundle to time the sparse leg of")
    parser.add_argument("--queries", type=Path, help="folder with queries.jsonl(.gz), to time with")
    parser.add_argument("--count", type=int, default=500, help="queries to time with (500)")
    parser.add_argument("--seed", type=int, default=0, help="order of the queries")
    parser.add_argument("--results", type=Path, required=True, help="file to write the figures to")
    return parser


if __name__ == "__main__":
    sys.exit(main())
