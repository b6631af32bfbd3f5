"""Growth of costs with the corpus, the dimension, the terms per document, k, candidates and the query's length.

    python -m research.speed.scaling BUNDLE … --queries FOLDER --results docs/results/scaling.json

The bundles are those of `research.speed.make_corpus` at several sizes, and real ones cut to other dimensions and terms.
Each is measured in process, one query after the other, and as a service: start with its files out of the page cache,
first queries, memory of one and of two processes. `--speed` records the growth of a series of bundles that differ only
in size. `research.pages.results` extrapolates to 10 and 100 million documents.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from urllib.request import Request, urlopen

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.overlap import dense_info
from lightretriever.loadtest.process import Server, serve_command
from lightretriever.loadtest.program import option, program
from lightretriever.loadtest.record import four_digits, latency, origin, write_json
from lightretriever.service.execution.memory import freeze_gc
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from research.harness.rows import record
from research.servers.__main__ import processes
from research.speed.stages import measure

__all__ = ["LENGTHS", "SIZES", "cold_start", "growth_rows", "main", "measure_bundle"]

SIZES: Final = ((1, 100), (10, 100), (100, 100), (10, 10), (10, 1000), (1000, 1000))
"""k and candidates of a search."""
LENGTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Numbers of words of a query."""
_FIRST: Final = 20


def measure_bundle(bundle: Bundle, queries: Sequence[str], count: int, seconds: float) -> dict[str, Any]:
    """Measure one bundle; times in milliseconds, sizes in bytes, memory in MiB."""
    manifest, asked = bundle.manifest, queries[:count]
    sizes = {name: info.bytes for name, info in manifest.files.items()}
    lucene = sum(size for name, size in sizes.items() if name.startswith(f"{manifest.sparse.directory}/"))
    info = dense_info(bundle)
    dense = sizes[info.file]
    cold, memory = cold_start(bundle, queries), processes(bundle.path, queries, seconds)
    with SearchEngine.open(bundle, Settings(max_candidates=max(most for _, most in SIZES))) as engine:
        engine.warm_up()
        freeze_gc()  # as the service does
        measure(engine, asked)
        stages = {name: latency(values, 1e3) for name, values in measure(engine, asked).items()}
        by_size = [{"k": k, "candidates": most} | _searches(engine, asked, k, most) for k, most in SIZES]
        words = " ".join(queries).split()
        by_length = [{"words": length} | _searches(engine, _cut(words, length, count)) for length in LENGTHS]
    return {
        "name": manifest.name,
        "documents": manifest.documents,
        "dimension": manifest.dimension,
        "top_k": manifest.sparse.top_k,
        "factory": info.factory,
        "bytes": {"dense": dense, "lucene": lucene, "other": sum(sizes.values()) - dense - lucene},
        "cold": cold,
        "processes": memory,
        "stages": stages,
        "sizes": by_size,
        "lengths": by_length,
    }


def growth_rows(bundles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Derive rows of `speed.json`: one for each bundle, and the slope of p50, and of the bytes of both libraries'
    files, over the documents, in log-log."""
    rows: list[dict[str, Any]] = []
    own = sorted(bundles, key=_documents)
    for one in own:
        memory = {"private_mb": one["processes"][-1]["private"], "second_mb": one["processes"][-1]["added_pss"]}
        facts = {"setting": f"{one['documents']:,} documents", "unit": "ms", "documents": one["documents"]}
        times = {**one["stages"]["search"], "ready_s": one["cold"]["ready_s"], **memory}
        rows.append({"key": "growth", **facts, **times, "factory": one["factory"]})
    if len(own) > 1:
        slopes = [_slope(own, value) for value in (_p50, _bytes)]
        sizes = f"{own[0]['documents']:,} to {own[-1]['documents']:,} documents"
        rows.append({"key": "growth_slope", "setting": sizes, "unit": "", "value": slopes[0], "bytes": slopes[1]})
    return rows


def _slope(bundles: Sequence[Mapping[str, Any]], value: Callable[[Mapping[str, Any]], float]) -> float:
    sizes, values = ([of(one) for one in bundles] for of in (_documents, value))
    return four_digits(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def _identity(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a bundle from the others: one corpus is measured in several sizes, and cut in several ways."""
    return one["name"], one["documents"], one["dimension"], one["top_k"]


def _documents(one: Mapping[str, Any]) -> int:
    return int(one["documents"])


def _p50(one: Mapping[str, Any]) -> float:
    return float(one["stages"]["search"]["p50"])


def _bytes(one: Mapping[str, Any]) -> int:
    return int(one["bytes"]["dense"] + one["bytes"]["lucene"])


def _cut(words: Sequence[str], length: int, count: int) -> list[str]:
    """Cut running text into up to `count` queries of `length` words each."""
    return [" ".join(words[start : start + length]) for start in range(0, len(words) - length + 1, length)][:count]


def _searches(engine: SearchEngine, queries: Sequence[str], k: int = 10, candidates: int = 100) -> dict[str, float]:
    seconds = []
    for query in queries:
        begun = perf_counter()
        engine.search(SearchRequest(query=query, k=k, candidates=candidates))
        seconds.append(perf_counter() - begun)
    return latency(seconds, 1e3) if seconds else {}


def cold_start(bundle: Bundle, queries: Sequence[str]) -> dict[str, float]:
    """Start a service with its files out of the page cache: `ready_s`, and milliseconds of the first and 20th query."""
    for file in bundle.manifest.files:
        descriptor = os.open(bundle.path / file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # only clean pages can leave the page cache; pages mapped by others stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
    with Server(serve_command(bundle.path)) as server:
        times = [_ask(server.url, queries[number % len(queries)]) for number in range(_FIRST)]
        return {"ready_s": round(server.ready_s, 2), "first_ms": times[0], "20th_ms": times[-1]}


def _ask(url: str, query: str) -> float:
    """Send one request on a new connection; give the milliseconds."""
    request = Request(f"{url}/search", json.dumps({"query": query}).encode(), {"content-type": "application/json"})
    begun = perf_counter()
    with urlopen(request) as answer:
        answer.read()
    return round((perf_counter() - begun) * 1e3, 2)


@program(
    option("bundles", None, "bundles to measure; none: only derive the growth", type=Path, nargs="*"),
    option("--queries", None, "folder with queries.jsonl(.gz)", type=Path),
    option("--results", Path, "JSON file of the results"),
    option("--further", False, "keep the file's other bundles"),
    option("--speed", None, "JSON file to record the growth in, such as docs/results/speed.json", type=Path),
    option("--count", 1000, "queries per measurement"),
    option("--seconds", 5.0, "searches before memory is read"),
    option("--seed", 7, "order of the queries"),
)
def main(given: Namespace) -> None:
    """Measure the given bundles, and record their growth if requested."""
    if given.bundles:
        _measure_all(given)
    if given.speed is not None:
        content = json.loads(given.results.read_text(encoding="utf-8"))
        record(given.speed, growth_rows(content["bundles"]), content["command"], whole=("growth", "growth_slope"))


def _measure_all(given: Namespace) -> None:
    queries = read_texts(given.queries, given.seed)
    asked = {"name": given.queries.name, "count": min(given.count, len(queries))}
    before = json.loads(given.results.read_text(encoding="utf-8"))["bundles"] if given.further else []
    found = {_identity(one): one for one in before}
    for bundle in [Bundle.open(path) for path in given.bundles]:
        print(f"measuring {bundle.path}", file=sys.stderr)
        one = measure_bundle(bundle, queries, given.count, given.seconds)
        found[_identity(one)] = one
    content = {"command": given.command, "queries": asked, "bundles": list(found.values())}
    write_json(given.results, origin() | content)


if __name__ == "__main__":
    sys.exit(main())
