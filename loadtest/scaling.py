"""How costs grow: with the corpus, the dimension, the terms per document, k, candidates and the query's length.

    python -m lightretriever.loadtest.scaling BUNDLE … --queries FOLDER --results docs/results/scaling.json --docs docs/speed.md

The bundles are those of `loadtest.make_corpus` at several sizes, and real ones cut at other dimensions and terms. Every
bundle is measured in process, one query after the other, and as a service: start with its files out of the page cache,
first queries, memory of one and of two processes. `--docs` writes the tables, with what follows for 10 and 100 million
documents, between two marks of that page.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final
from urllib.request import Request, urlopen

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.quality import typed_command
from lightretriever.artifacts.evaluation.report import environment, machine_name
from lightretriever.artifacts.files.workdir import write_atomically
from lightretriever.artifacts.signals import stoppable
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.goals import processes, serve_command
from lightretriever.loadtest.process import Server
from lightretriever.loadtest.record import commit, latency
from lightretriever.loadtest.scaling_report import write_tables
from lightretriever.loadtest.stages import measure
from lightretriever.service.execution.memory import settle
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings

__all__ = ["LENGTHS", "SIZES", "cold_start", "evict", "main", "measure_bundle"]

SIZES: Final = ((1, 100), (10, 100), (100, 100), (10, 10), (10, 1000), (1000, 1000))
"""k and candidates of a search."""
LENGTHS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Words of a query."""
_FIRST: Final = 20

Result = dict[str, Any]


def measure_bundle(bundle: Bundle, queries: Sequence[str], count: int, seconds: float) -> Result:
    """Everything about one bundle; times in milliseconds, sizes in bytes, memory in MiB."""
    manifest = bundle.manifest
    sizes = {name: info.bytes for name, info in manifest.files.items()}
    lucene = sum(size for name, size in sizes.items() if name.startswith(f"{manifest.sparse.directory}/"))
    dense = sum(sizes[name] for name in (manifest.dense.file, manifest.dense.spreads) if name is not None)
    result: Result = {
        "name": manifest.name,
        "documents": manifest.documents,
        "dimension": manifest.dimension,
        "top_k": manifest.sparse.top_k,
        "factory": manifest.dense.factory,
        "bytes": {"dense": dense, "lucene": lucene, "other": sum(sizes.values()) - dense - lucene},
    }
    result["cold"] = cold_start(bundle, queries)
    result["processes"] = processes(bundle.path, queries, seconds)
    with SearchEngine.open(bundle, Settings(max_candidates=max(most for _, most in SIZES))) as engine:
        engine.warm_up()
        settle()  # as the service does
        measure(engine, queries[:count])
        stages = measure(engine, queries[:count])
        result["stages"] = {name: latency(values, 1e3) for name, values in stages.items()}
        result["sizes"] = [
            {"k": k, "candidates": most} | _searches(engine, queries[:count], k, most) for k, most in SIZES
        ]
        words = " ".join(queries).split()
        result["lengths"] = [
            {"words": length} | _searches(engine, _cut(words, length, count), 10, 100) for length in LENGTHS
        ]
    return result


def _cut(words: Sequence[str], length: int, count: int) -> list[str]:
    """Up to `count` queries of `length` words each, from running text."""
    return [" ".join(words[start : start + length]) for start in range(0, len(words) - length + 1, length)][:count]


def _searches(engine: SearchEngine, queries: Sequence[str], k: int, candidates: int) -> dict[str, float]:
    seconds = []
    for query in queries:
        begun = perf_counter()
        engine.search(SearchRequest(query=query, k=k, candidates=candidates))
        seconds.append(perf_counter() - begun)
    return latency(seconds, 1e3) if seconds else {}


def evict(bundle: Bundle) -> None:
    """Ask the kernel to forget the bundle's files. What another process has mapped stays."""
    for file in bundle.manifest.files:
        descriptor = os.open(bundle.path / file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # only what is on disk can be forgotten
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def cold_start(bundle: Bundle, queries: Sequence[str]) -> Result:
    """Starting a service whose files are not in memory, with the usual warm-up and with one query of it.

    By kind: `ready_s`, and the milliseconds of the first query and of the 20th.
    """
    found: Result = {}
    for kind, environment_of in (("warm_up", {}), ("no_warm_up", {"LIGHTRETRIEVER_WARM_UP_QUERIES": "1"})):
        evict(bundle)
        with Server(serve_command(bundle.path), environment=environment_of) as server:
            times = [_ask(server.url, queries[number % len(queries)]) for number in range(_FIRST)]
            found[kind] = {"ready_s": round(server.ready_s, 2), "first_ms": times[0], "20th_ms": times[-1]}
    return found


def _ask(url: str, query: str) -> float:
    """Milliseconds of one request, on a new connection."""
    headers = {"content-type": "application/json"}
    request = Request(f"{url}/search", data=json.dumps({"query": query}).encode(), headers=headers)
    begun = perf_counter()
    with urlopen(request) as answer:
        answer.read()
    return round((perf_counter() - begun) * 1e3, 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the bundles that are given, and write tables where they are asked for; returns the exit status."""
    given = _parser().parse_args(arguments)
    words = ["python", "-m", "lightretriever.loadtest.scaling", *(sys.argv[1:] if arguments is None else arguments)]
    try:
        if given.bundles:
            _measure_all(given, typed_command(words))
        if given.docs is not None:
            write_tables(given.results, given.docs)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _measure_all(given: argparse.Namespace, command: str) -> None:
    here, queries = environment(), read_texts(given.queries, given.seed)
    bundles = [Bundle.open(path) for path in given.bundles]
    results = []
    for bundle in bundles:
        print(f"measuring {bundle.path}", file=sys.stderr)
        results.append(measure_bundle(bundle, queries, given.count, given.seconds))
    content = {
        "machine": machine_name(here["machine"]),
        "date": here["date"],
        "commit": commit(),
        "command": command,
        "queries": {"name": given.queries.name, "count": min(given.count, len(queries))},
        "bundles": results,
    }
    write_atomically(given.results, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="How costs grow.")
    parser.add_argument("bundles", type=Path, nargs="*", help="bundles to measure; none: only write the tables")
    parser.add_argument("--queries", type=Path, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--results", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--docs", type=Path, help="Markdown page to write the tables into")
    parser.add_argument("--count", type=int, default=1000, help="queries per measurement (1000)")
    parser.add_argument("--seconds", type=float, default=5.0, help="searches before memory is read (5)")
    parser.add_argument("--seed", type=int, default=7, help="order of the queries (7)")
    return parser


if __name__ == "__main__":
    with stoppable():  # its servers end with it
        sys.exit(main())
