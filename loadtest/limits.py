"""How far the legs are from what the memory allows: the bytes that a search reads, and how long the memory takes.

    python -m lightretriever.loadtest.limits BUNDLE --queries FOLDER --results docs/results/speed.json

table   tokens of the query × D × bytes of a number
dense   the lists' centroids, the codes of the lists visited, and the vectors of the candidates that are scored again
sparse  every posting of the query's tokens, three bytes each, as in the index's plain lists. A search leaves some out

The memory's speed is that of one thread which reads a large array from one end to the other, the best of several times.
A search jumps, so it can't be as fast; a row says how many times as long it took.
"""

import argparse
import random
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.artifacts.dense.list_spread import spread_bytes
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.postings import postings_per_query
from lightretriever.artifacts.evaluation.quality import typed_command
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.loadtest.paper_table import light_encoder
from lightretriever.loadtest.record import record
from lightretriever.loadtest.wire import LoadError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.encoder import EncodedQuery

__all__ = ["KEY", "dense_bytes_read", "main", "measure", "reading_speed"]

KEY: Final = "memory_limit"

_K: Final = 100
_ARRAY: Final = 512 << 20
_TIMES: Final = 5
_POSTING_BYTES: Final = 3


def reading_speed(size: int = _ARRAY) -> float:
    """Bytes a second that one thread reads from memory, the best of several times."""
    array = np.ones(size, np.uint8)
    return size / min(_seconds(array.max) for _ in range(_TIMES))


def dense_bytes_read(factory: str, dimension: int, documents: int, parameters: Mapping[str, float]) -> float:
    """Bytes that a search for 100 candidates reads of a Faiss index with D dimensions and N documents.

        Flat                          4·D·N
        SQ8                           D·N
        IVFn,PQqx4fsr,Refine(SQ8)     4·D·n + N·nprobe/n·q/2 + 100·k_factor_rf·D
        Queries,IVFn,…                the same, but 8·q·(D + nprobe) + 2·q·n for 4·D·n, and the directions of n lists

    LoadError for another factory: how much of a graph is read depends on the query.
    """
    if factory in ("Flat", "SQ8"):
        return dimension * documents * (4.0 if factory == "Flat" else 1.0)
    if lists := re.fullmatch(r"(Queries,)?IVF(\d+),PQ(\d+)x4fsr?,Refine\(SQ8\)", factory):
        count, parts = int(lists[2]), int(lists[3])
        probes = parameters["nprobe"]
        mapped = 8.0 * parts * (dimension + probes) + count * (2 * parts + spread_bytes(parts))
        tables = mapped if lists[1] else 4.0 * dimension * count
        visited = documents * probes / count * parts / 2
        return tables + visited + _K * parameters["k_factor_rf"] * dimension
    raise LoadError(f"What a search of {factory!r} reads has no formula here.", remedy="Use a bundle of another size.")


def measure(bundle: Bundle, texts: Sequence[str], speed: float) -> list[dict[str, Any]]:
    """Rows for the file of speeds: of each part the microseconds at `speed` bytes a second, and those it took (p50)."""
    manifest, encoder = bundle.manifest, light_encoder(bundle)
    dense = bundle.dense()
    with bundle.sparse() as sparse:
        encoded = [encoder.encode(text, manifest.default_task, StageClock()) for text in texts]
        timed = _timed(encoder.tables[manifest.default_task].mean, dense.search, sparse, encoded)
        tokens = float(np.mean([query.counts.sum() for query in encoded]))
        table = bundle.path / manifest.tasks[manifest.default_task].file
        row = np.load(table, mmap_mode="r").dtype.itemsize * manifest.dimension
        read = {
            "table": tokens * row,
            "dense": dense_bytes_read(manifest.dense.factory, dense.dimension, dense.count, manifest.dense.parameters),
            "sparse": postings_per_query(sparse, encoded) * _POSTING_BYTES,
        }
    facts = {"unit": "µs", "gigabytes_per_s": round(speed / 1e9, 2), "documents": dense.count, "queries": len(texts)}
    return [
        {
            "key": KEY,
            "setting": f"{part}, {dense.count:,} documents",
            "value": float(f"{size / speed * 1e6:.3g}"),
            "bytes": round(size),
            "measured": float(f"{timed[part] * 1e6:.4g}"),
            "times": float(f"{timed[part] * speed / size:.3g}"),
            **facts,
        }
        for part, size in read.items()
    ]


def _timed(
    mean: Callable[..., Any], dense: Callable[..., Any], sparse: ImpactIndex, queries: Sequence[EncodedQuery]
) -> dict[str, float]:
    """Median seconds of each part, after one round to get warm. All parts of a query in turn."""
    seconds: dict[str, list[float]] = {}
    for _ in range(2):
        seconds = {"table": [], "dense": [], "sparse": []}
        for query in queries:
            ids = np.repeat(query.terms, query.counts)
            seconds["table"].append(_seconds(mean, ids))
            seconds["dense"].append(_seconds(dense, query.dense, _K))
            seconds["sparse"].append(_seconds(sparse.search, query.terms, query.weights, _K))
    return {part: float(np.median(values)) for part, values in seconds.items()}


def _seconds(work: Callable[..., Any], *arguments: Any) -> float:
    begun = perf_counter()
    work(*arguments)
    return perf_counter() - begun


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and record; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        texts = list(read_queries(find_file(given.queries, "queries")).values())
        random.Random(given.seed).shuffle(texts)
        bundle = Bundle.open(given.bundle)
        bundle.check_hashes()  # into the page cache, as in the service
        rows = measure(bundle, texts[: given.count], reading_speed())
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print(
            f"{row['setting']:32s} {row['bytes']:>12,} bytes: {row['value']:>8,} µs at {row['gigabytes_per_s']} GB/s, "
            f"took {row['measured']:,} µs, {row['times']:,} times"
        )
    if given.results is not None:
        record(
            given.results,
            rows,
            typed_command(["python", "-m", "lightretriever.loadtest.limits", *(arguments or sys.argv[1:])]),
        )
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="How far the legs are from what the memory allows.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--count", type=int, default=1000, help="queries to measure with (1000)")
    parser.add_argument("--seed", type=int, default=0, help="order of the queries")
    parser.add_argument("--results", type=Path, help="file of speeds to record in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
