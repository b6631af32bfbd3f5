"""Times each stage of a search in process, one query after the other.

    python -m lightretriever.loadtest.stages BUNDLE --queries FOLDER --results docs/results/speed.json [--work FOLDER]

Times all stages of each query in turn, so a disturbance of the machine affects all of them.

    tokenize  text to token ids                        fetch      the first ten documents
    encode    text to both query vectors               serialise  the answer as JSON
    dense     the dense leg's candidates               search     everything but HTTP, legs in parallel
    sparse    the sparse leg's candidates              fresh      `encode` with nothing else between two queries
    rescore   each leg's scores of the other's         bm25       Lucene's BM25 on the words of the same documents,
    fuse      two rankings to one                                 with --work, the folder for that index
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any, Final, TypeVar

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.sparse.bm25 import WordIndex
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.results.record import latency, record, typed
from lightretriever.loadtest.servers.bundle_documents import word_index
from lightretriever.service.backends.base import EncodedQuery, Leg
from lightretriever.service.execution.memory import freeze_gc
from lightretriever.service.http.json import json_response
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.fusion import CandidateTable, align, fuse_linear

__all__ = ["STAGES", "main", "measure", "rows_of"]

STAGES: Final = ("tokenize", "encode", "dense", "sparse", "rescore", "fuse", "fetch", "serialise", "search")
_PAGE: Final = 10
_WEIGHTS: Final = (0.7, 0.3)
_LEAST_RECALL: Final = 0.95
_WARM_UP: Final = 200
T = TypeVar("T")

Seconds = dict[str, list[float]]
"""Seconds of every query, by stage."""


def measure(
    engine: SearchEngine, queries: Sequence[str], *, candidates: int = 100, words: WordIndex | None = None
) -> Seconds:
    """Time every stage on every query, and BM25 on `words` if given. The engine must be warm."""
    parts, task = engine.parts, engine.bundle.manifest.default_task
    dense, sparse = parts.legs["dense"], parts.legs["sparse"]
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
        if words is not None:
            timed("bm25", words.search, text, candidates)
        table = align(found)
        timed("rescore", _rescore, table, (dense, sparse), query)
        fused = timed("fuse", fuse_linear, table, _WEIGHTS)
        timed("fetch", parts.documents.fetch, table.ordinals[fused.order[:_PAGE]], None)
        answer = timed("search", engine.search, SearchRequest(query=text, candidates=candidates))
        timed("serialise", json_response, answer.model_dump())
    for text in queries:  # within a search, encoding takes longer, because the legs fill the processor's caches
        timed("fresh", parts.encoder.encode, text, task, StageClock())
    return seconds


def _rescore(table: CandidateTable, legs: Sequence[Leg], query: EncodedQuery) -> None:
    for row, leg in enumerate(legs):
        missing = table.missing(row)
        if missing.size:
            table.fill(row, leg.scores(query, missing))


def rows_of(seconds: Seconds, bundle: Bundle, backends: dict[str, str]) -> list[dict[str, Any]]:
    """Make rows for `speed.json`: one per stage, and those that have a goal. `backends`: by leg."""
    documents, info = bundle.manifest.documents, bundle.manifest.dense
    facts = {"documents": documents, "queries": len(seconds["search"])}
    rows: list[dict[str, Any]] = []
    for stage in (*STAGES, "bm25"):
        if stage in seconds:
            setting = f"{stage}{f' ({backends[stage]})' if stage in backends else ''}, {documents:,} documents"
            rows.append({"key": "stage", "setting": setting, "unit": "µs", **latency(seconds[stage], 1e6), **facts})
    rows.append({"key": "encode_query_us", "unit": "µs", **latency(seconds["fresh"], 1e6), **facts})
    rows.append({"key": "hybrid_inprocess_ms", "unit": "ms", **latency(seconds["search"], 1e3), **facts})
    recall = 1.0 if info.recall is None else info.recall  # measured at build time; None for an exact index
    if recall >= _LEAST_RECALL:
        found = {"value": round(1 / latency(seconds["dense"], 1)["p50"]), "recall@100": recall}
        rows.append({"key": "dense_qps_per_core", "unit": "queries/s", **found, **facts})
    if "bm25" in seconds:
        ours, theirs = latency(seconds["sparse"], 1), latency(seconds["bm25"], 1)
        ratios = {name: round(ours[name] / theirs[name], 3) for name in ours}
        rows.append({"key": "sparse_vs_bm25", "unit": "ratio", **ratios, "backend": backends["sparse"], **facts})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and record; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        texts, bundle = read_texts(given.queries, given.seed), Bundle.open(given.bundle)
        with ExitStack() as stack:
            words = None
            if given.work is not None:
                words = stack.enter_context(WordIndex.open(word_index(bundle, given.work)))
            engine = stack.enter_context(SearchEngine.open(bundle, hashed=False))
            engine.warm_up()
            freeze_gc()  # as the service does
            measure(engine, texts[: min(_WARM_UP, given.count)], candidates=given.candidates, words=words)
            seconds = measure(engine, texts[: given.count], candidates=given.candidates, words=words)
            rows = rows_of(seconds, bundle, {name: leg.backend for name, leg in engine.parts.legs.items()})
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows:
        figures = "  ".join(f"{name} {row[name]:>9,}" for name in ("p50", "p95", "p99", "value") if name in row)
        print(f"{row.get('setting', row['key']):45s} {figures} {row['unit']}")
    if given.results is not None:
        record(given.results, rows, typed("stages", arguments), whole=("stage",))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What each stage of a search costs in process.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--work", type=Path, help="folder for an index of the documents' words: times BM25 as well")
    parser.add_argument("--count", type=int, default=2000, help="queries to measure with (2000)")
    parser.add_argument("--candidates", type=int, default=100, help="candidates per leg (100)")
    parser.add_argument("--seed", type=int, default=0, help="order of the queries")
    parser.add_argument("--results", type=Path, help="file of speeds to record in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
