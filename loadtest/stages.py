"""Stage benchmarks: what each part of a search costs in process, one query after the other.

    python -m lightretriever.loadtest.stages BUNDLE --queries FOLDER --results docs/results/speed.json

For every query all stages are timed in turn, so that whatever disturbs the machine disturbs all of them.
All files are read first, as the service does when it starts.

    tokenize    text to token ids                     fuse       two rankings to one
    encode      text to both query vectors            fetch      the first ten documents
    dense       Faiss: 100 candidates                 serialise  the answer as JSON
    sparse      Lucene: 100 candidates                search     everything but HTTP, legs in parallel
    rescore     each leg's score of the other's candidates
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeVar

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.quality import typed_command
from lightretriever.loadtest.record import latency, record
from lightretriever.service.backends.legs import Found, Leg
from lightretriever.service.execution.memory import settle
from lightretriever.service.http.json import json_response
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.encoder import EncodedQuery
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.fusion import CandidateTable, Fused, align, fuse_linear

__all__ = ["STAGES", "main", "measure", "measure_encoding", "rows_of"]

STAGES: Final = ("tokenize", "encode", "dense", "sparse", "rescore", "fuse", "fetch", "serialise", "search")
_PAGE: Final = 10
T = TypeVar("T")


class Stopwatch:
    """Seconds per stage, one entry per query."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}

    def time(self, stage: str, work: Callable[..., T], *arguments: Any) -> T:
        """Do the work, note how long it took, and give its result."""
        begun = perf_counter()
        result = work(*arguments)
        self.seconds[stage].append(perf_counter() - begun)
        return result


def measure(engine: SearchEngine, queries: Sequence[str], *, candidates: int = 100) -> dict[str, list[float]]:
    """Time every stage on every query; seconds by stage. The engine must be warm."""
    watch, parts = Stopwatch(), engine.parts
    task = engine.bundle.manifest.default_task
    dense, sparse = parts.legs["dense"], parts.legs["sparse"]
    for text in queries:
        watch.time("tokenize", parts.encoder.tokenizer.encode, text)
        query = watch.time("encode", parts.encoder.encode, text, task, StageClock())
        legs = [
            watch.time("dense", dense.search, query, candidates),
            watch.time("sparse", sparse.search, query, candidates),
        ]
        table = align(legs)
        watch.time("rescore", _rescore, table, (dense, sparse), query)
        fused = watch.time("fuse", _fuse, legs)
        watch.time("fetch", parts.documents.fetch, table.ordinals[fused.order[:_PAGE]], None)
        answer = watch.time("search", engine.search, SearchRequest(query=text, candidates=candidates))
        watch.time("serialise", json_response, answer.model_dump())
    return watch.seconds


def measure_encoding(engine: SearchEngine, queries: Sequence[str]) -> list[float]:
    """Time encoding by itself, one query after the other; seconds. In a search, where both legs have filled the
    processor's caches with something else meanwhile, it takes longer: that is the stage `encode`."""
    watch, encoder = Stopwatch(), engine.parts.encoder
    task = engine.bundle.manifest.default_task
    for text in queries:
        watch.time("encode", encoder.encode, text, task, StageClock())
    return watch.seconds["encode"]


def measure_fresh_encoding(engine: SearchEngine, texts: Sequence[str], count: int) -> list[float]:
    """As `measure_encoding`, of queries that were not asked before, after all others, from which words are known. Where
    there are no others, the same ones a second time."""
    fresh = texts[count : 2 * count] or texts[:count]
    measure_encoding(engine, [*texts[:count], *texts[2 * count :]])
    return measure_encoding(engine, fresh)


def _rescore(table: CandidateTable, legs: Sequence[Leg], query: EncodedQuery) -> None:
    for row, leg in enumerate(legs):
        missing = table.missing(row)
        if missing.size:
            table.fill(row, leg.scores(query, missing))


def _fuse(legs: Sequence[Found]) -> Fused:
    return fuse_linear(align(legs), (0.7, 0.3))


def rows_of(seconds: dict[str, list[float]], alone: list[float], documents: int, queries: int) -> list[dict[str, Any]]:
    """Rows for the file of speeds: one per stage, and those that have a goal."""
    facts = {"documents": documents, "queries": queries}
    rows: list[dict[str, Any]] = [
        {
            "key": "stage",
            "setting": f"{stage}, {documents:,} documents",
            "unit": "µs",
            **latency(seconds[stage], 1e6),
            **facts,
        }
        for stage in STAGES
    ]
    rows.append({"key": "encode_query_us", "unit": "µs", **latency(alone, 1e6), **facts})
    rows.append({"key": "hybrid_inprocess_ms", "unit": "ms", **latency(seconds["search"], 1e3), **facts})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and record; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        texts = list(read_queries(find_file(given.queries, "queries")).values())
        random.Random(given.seed).shuffle(texts)
        with SearchEngine.open(Bundle.open(given.bundle), hashed=False) as engine:
            engine.warm_up()
            settle()  # as the service does
            measure(engine, texts[: min(200, given.count)], candidates=given.candidates)
            seconds = measure(engine, texts[: given.count], candidates=given.candidates)
            alone = measure_fresh_encoding(engine, texts, given.count)
            rows = rows_of(seconds, alone, engine.bundle.manifest.documents, len(seconds["search"]))
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows[: len(STAGES)]:
        print(f"{row['setting']:40s} p50 {row['p50']:>9,} p95 {row['p95']:>9,} p99 {row['p99']:>9,} µs")
    if given.results is not None:
        record(
            given.results,
            rows,
            typed_command(["python", "-m", "lightretriever.loadtest.stages", *(arguments or sys.argv[1:])]),
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What each part of a search costs in process.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--count", type=int, default=2000, help="queries to measure with (2000)")
    parser.add_argument("--candidates", type=int, default=100, help="candidates per leg (100)")
    parser.add_argument("--seed", type=int, default=0, help="order of the queries")
    parser.add_argument("--results", type=Path, help="file of speeds to record in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
