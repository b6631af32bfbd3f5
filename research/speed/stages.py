"""Times each stage of a search, and what the service adds to Faiss, Lucene, `tokenizers` and HTTP.

    python -m research.speed.stages BUNDLE --queries FOLDER --results docs/results/speed.json

All stages of a query are timed in turn, one query after the other, so a disturbance of the machine affects all of them.

    tokenize  text to token ids                        fetch      the first ten documents
    encode    text to both query vectors               serialise  the answer as JSON
    dense     the dense leg's candidates               search     everything but HTTP, legs in parallel
    sparse    the sparse leg's candidates              fresh      `encode` with nothing else between two queries
    legs      both legs in parallel                    tokenizers the library alone, likewise
    rescore   each leg's scores of the other's
    fuse      two rankings to one

Then searches in process, over HTTP, and requests to an empty route take turns.
"""

import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final, TypeVar

import numpy as np
from tokenizers import Tokenizer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.connection import search_requests
from lightretriever.loadtest.generator import closed_loop, read_texts, run_loop
from lightretriever.loadtest.overlap import dense_info
from lightretriever.loadtest.process import Server, python, serve_command
from lightretriever.loadtest.program import BUNDLE, QUERIES, SPEED, option, program
from lightretriever.loadtest.record import four_digits, latency, median
from lightretriever.service.backends.base import EncodedQuery, Leg
from lightretriever.service.execution.memory import freeze_gc
from lightretriever.service.http.json import json_response
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.fusion import CandidateTable, align, fuse_linear
from research.harness.rows import record

__all__ = ["STAGES", "main", "measure", "over_http", "rows_of"]

STAGES: Final = ("tokenize", "encode", "dense", "sparse", "legs", "rescore", "fuse", "fetch", "serialise", "search")
_PAGE: Final = 10
_WEIGHTS: Final = (0.7, 0.3)
_WARM_UP: Final = 2_000  # queries, until Java has compiled what they run
_TURNS: Final = 7  # over HTTP
_WARM_UP_TURNS: Final = 7
_TURN_S: Final = 1.5
T = TypeVar("T")

Seconds = dict[str, list[float]]
"""Seconds of every query, by stage."""


def measure(engine: SearchEngine, queries: Sequence[str], *, candidates: int = 100) -> Seconds:
    """Time every stage on every query. The engine must be warm."""
    parts, task = engine.parts, engine.bundle.manifest.default_task
    dense_info(engine.bundle)  # a bundle without one has no such stages
    dense, sparse = parts.backends.legs["dense"], parts.backends.legs["sparse"]
    seconds: Seconds = {}

    def timed(stage: str, work: Callable[..., T], *arguments: Any) -> T:
        begun = perf_counter()
        result = work(*arguments)
        seconds.setdefault(stage, []).append(perf_counter() - begun)
        return result

    for text in queries:
        timed("tokenize", parts.encoder.tokenizer.encode, text)
        query = timed("encode", parts.encoder.encode, text, task, StageClock())
        found = [
            timed("dense", dense.search, query, candidates),
            timed("sparse", sparse.search, query, candidates),
        ]
        timed("legs", parts.backends.search, query, ("dense", "sparse"), candidates, None, perf_counter() + 60)
        table = align(found)
        timed("rescore", _rescore, table, (dense, sparse), query)
        fused = timed("fuse", fuse_linear, table, _WEIGHTS)
        timed("fetch", parts.documents.fetch, table.ordinals[fused.order[:_PAGE]], None)
        answer = timed("search", engine.answer, SearchRequest(query=text, candidates=candidates))
        timed("serialise", json_response, answer)
    alone = partial(
        Tokenizer.from_file(str(engine.bundle.path / engine.bundle.manifest.tokenizer.file)).encode,
        add_special_tokens=False,
    )
    for text in queries:  # the library remembers the words that it has split
        alone(text)
    for text in queries:  # within a search, encoding takes longer, because the legs fill the processor's caches
        timed("fresh", parts.encoder.encode, text, task, StageClock())
        timed("tokenizers", alone, text)
    return seconds


def over_http(engine: SearchEngine, queries: Sequence[str]) -> dict[str, Any]:
    """Measure what HTTP adds to a search: the row `http_overhead`, of median times in ms over turns of each."""
    texts, rows = list(queries), list[dict[str, float]]()
    with (
        Server(serve_command(engine.bundle.path.resolve())) as ours,
        Server([*python("research.servers.empty"), "--port", "0"]) as empty,
    ):
        for turn in range(_WARM_UP_TURNS + _TURNS):
            texts = texts[len(texts) // _TURNS :] + texts[: len(texts) // _TURNS]
            http, nothing = (_one_by_one(server.url, texts) for server in (ours, empty))
            seconds, until = [], perf_counter() + _TURN_S
            for text in texts:
                begun = perf_counter()
                engine.answer(SearchRequest(query=text))
                seconds.append(perf_counter() - begun)
                if perf_counter() > until:
                    break
            if turn >= _WARM_UP_TURNS:
                rows.append({"http": http, "in_process": latency(seconds, 1e3)["p50"], "empty": nothing})
    ratios = [(row["http"] - row["in_process"]) / row["empty"] for row in rows]
    times = {f"{name}_ms": median([row[name] for row in rows]) for name in rows[0]}
    value = {"value": median(ratios), "turns": [four_digits(ratio) for ratio in ratios]}
    return {"key": "http_overhead", "unit": "times", **value, **times, "documents": engine.bundle.manifest.documents}


def _one_by_one(url: str, texts: Sequence[str]) -> float:
    work = closed_loop(url, search_requests(url, texts), connections=1, seconds=_TURN_S)
    return float(run_loop(work, on_time=False)["p50_ms"])


def _rescore(table: CandidateTable, legs: Sequence[Leg], query: EncodedQuery) -> None:
    for row, leg in enumerate(legs):
        missing = table.missing(row)
        if missing.size:
            table.fill(row, leg.scores(query, missing))


def rows_of(seconds: Seconds, bundle: Bundle, backends: dict[str, str]) -> list[dict[str, Any]]:
    """Make rows for `speed.json`: one per stage, and those that have a goal. `backends`: by leg."""
    documents = bundle.manifest.documents
    facts = {"documents": documents, "queries": len(seconds["search"])}
    rows: list[dict[str, Any]] = []
    for stage in (*STAGES, "fresh", "tokenizers"):
        setting = f"{stage}{f' ({backends[stage]})' if stage in backends else ''}, {documents:,} documents"
        rows.append({"key": "stage", "setting": setting, "unit": "µs", **latency(seconds[stage], 1e6), **facts})
    middle = {stage: float(np.median(values)) for stage, values in seconds.items()}
    slower, both = max(middle["dense"], middle["sparse"]), middle["dense"] + middle["sparse"]
    for key, value in (
        ("search_overhead", middle["search"] / slower),
        ("parallel_gain", both / middle["search"]),
        ("parallel_gain_legs", both / middle["legs"]),
        ("encode_overhead", middle["fresh"] / middle["tokenizers"]),
    ):
        rows.append({"key": key, "unit": "times", "value": four_digits(value), **facts})
    return rows


@program(
    BUNDLE,
    QUERIES,
    option("--count", 2000, "queries to measure with"),
    option("--candidates", 100, "candidates per leg"),
    option("--seed", 0, "order of the queries"),
    SPEED,
)
def main(given: Namespace) -> None:
    """Measure and record."""
    texts, bundle = read_texts(given.queries, given.seed), Bundle.open(given.bundle)
    with SearchEngine.open(bundle, hashed=False) as engine:
        engine.warm_up()
        freeze_gc()  # as the service does
        measure(engine, texts[: min(_WARM_UP, given.count)], candidates=given.candidates)
        seconds = measure(engine, texts[: given.count], candidates=given.candidates)
        rows = rows_of(seconds, bundle, {name: leg.backend for name, leg in engine.parts.backends.legs.items()})
        rows.append(over_http(engine, texts[: given.count]))
    for row in rows:
        figures = "  ".join(f"{name} {row[name]:>9,}" for name in ("p50", "p95", "p99", "value") if name in row)
        print(f"{row.get('setting', row['key']):45s} {figures} {row['unit']}")
    record(given.results, rows, given.command, whole=("stage",))


if __name__ == "__main__":
    sys.exit(main())
