"""Measures one shard: bytes of a document by part, and the time of each trip of a hybrid search.

    python -m research.scale.shard BUNDLE --queries FOLDER --times docs/results/shard-times.json.gz \\
        [--opensearch-url URL --index NAME]

A search asks all shards three times: for the best candidates of both legs (`legs`), for the true scores of the other
leg's candidates (`rescore`), and for the documents of the first page (`fetch`). Without a cluster, the bundle on this
machine is the shard. A cluster's index must have one shard, and one segment, so that its files can be told apart.

Every query is asked in every round, so that what is slow about a query can be told from what is slow about a moment.
`research.scale.scatter` reads the file.
"""

import gzip
import json
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.size import PartSize, part_sizes
from lightretriever.artifacts.cluster.aliases import only_index
from lightretriever.artifacts.cluster.client import ClusterAddress, connect
from lightretriever.artifacts.files.workdir import write_atomically
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.program import QUERIES, option, program
from lightretriever.loadtest.record import four_digits, origin
from lightretriever.service.execution.memory import freeze_gc
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import LegName
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.fusion import align, fuse_linear
from lightretriever.service.settings import Settings

__all__ = ["TRIPS", "cluster_parts", "main", "measure", "read_times"]

TRIPS: Final = ("legs", "rescore", "fetch")
_LEGS: Final[tuple[LegName, ...]] = ("dense", "sparse")
_WEIGHTS: Final = (0.7, 0.3)
_PAGE: Final = 10
_PATIENCE_S: Final = 60.0

_CLUSTER_FILES: Final = (
    ("vectors and their graph", ("vec", "vem", "vemf", "vex"), True),
    ("postings", ("doc", "pos", "psm", "tim", "tip", "tmd"), True),
    ("ordinals, norms and fields", ("dvd", "dvm", "kdd", "kdi", "kdm", "nvd", "nvm"), True),
    ("documents", ("fdt", "fdx", "fdm"), False),
)
"""Parts of an index on a cluster: the endings of their files, and whether searches read all over them."""

Trip = list[list[float]]
"""Milliseconds of one trip: for each query, those of every round."""


def measure(engine: SearchEngine, queries: Sequence[str], *, rounds: int, candidates: int) -> dict[str, Trip]:
    """Time every trip of every query, in `rounds` rounds. The engine must be warm."""
    times: dict[str, Trip] = {trip: [[] for _ in queries] for trip in TRIPS}
    for _ in range(rounds):
        for number, text in enumerate(queries):
            for trip, seconds in zip(TRIPS, _trips(engine, text, candidates), strict=True):
                times[trip][number].append(four_digits(seconds * 1e3))
    return times


def _trips(engine: SearchEngine, text: str, candidates: int) -> tuple[float, float, float]:
    """Search as `service.search.pipeline` does, and give the seconds of each trip."""
    parts = engine.parts
    query = parts.encoder.encode(text, engine.bundle.manifest.default_task, StageClock())
    begun = perf_counter()
    until = begun + _PATIENCE_S
    outcomes = parts.backends.search(query, _LEGS, candidates, None, until)
    found = [outcomes[name].get() for name in _LEGS]
    asked = perf_counter()
    table = align(found)
    wanted = {name: missing for row, name in enumerate(_LEGS) if (missing := table.missing(row)).size}
    ready = perf_counter()
    for name, scores in parts.backends.score(query, wanted, until).items() if wanted else ():
        table.fill(_LEGS.index(name), scores.get())
    scored = perf_counter()
    order = fuse_linear(table, _WEIGHTS).order[:_PAGE]
    fused = perf_counter()
    parts.documents.fetch(table.ordinals[order], None)
    return asked - begun, scored - ready, perf_counter() - fused


def cluster_parts(sizes: Mapping[str, int], documents: int) -> list[PartSize]:
    """The parts of an index with as many `documents`, from the bytes of its files by ending."""
    known = {ending for _, endings, _ in _CLUSTER_FILES for ending in endings}
    parts = []
    for name, endings, in_memory in _CLUSTER_FILES:
        size = sum(sizes.get(ending, 0) for ending in endings)
        parts.append(PartSize.growing(name, size / documents, documents, in_memory=in_memory))
    others = sum(size for ending, size in sizes.items() if ending not in known)
    return [*parts, PartSize.growing("other files", others / documents, documents, in_memory=False)]


def _cluster_sizes(url: str, alias: str) -> dict[str, int]:
    """The bytes of an index' files by ending."""
    cluster = connect(ClusterAddress(url), timeout_s=_PATIENCE_S)
    try:
        index = only_index(cluster, alias)
        with cluster.translated():
            found = cluster.client.indices.stats(
                index=index, metric="segments", params={"include_segment_file_sizes": "true"}
            )
        files: Mapping[str, Mapping[str, int]] = found["indices"][index]["primaries"]["segments"]["file_sizes"]
        return {ending: file["size_in_bytes"] for ending, file in files.items()}
    finally:
        cluster.close()


def read_times(file: Path) -> list[dict[str, Any]]:
    """The shards of a file that this program wrote; none if there is no file."""
    if not file.is_file():
        return []
    shards: list[dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))["shards"]
    return shards


def _record(file: Path, shard: dict[str, Any]) -> None:
    """Write a shard into the file, in place of one of the same name."""
    shards = [one for one in read_times(file) if one["name"] != shard["name"]]
    content = json.dumps({"shards": sorted([*shards, shard], key=lambda one: str(one["name"]))}, separators=(",", ":"))
    write_atomically(file, gzip.compress(content.encode(), mtime=0))


def _measured(given: Namespace) -> dict[str, Any]:
    queries, bundle = read_texts(given.queries, given.seed)[: given.count], Bundle.open(given.bundle)
    manifest = bundle.manifest
    there = {"backend": "opensearch", "opensearch_url": given.opensearch_url, "opensearch_index": given.index}
    settings = Settings.model_validate({"deadline_ms": _PATIENCE_S * 1e3, **(there if given.opensearch_url else {})})
    times: dict[str, Trip] = {}
    if given.rounds:
        with SearchEngine.open(bundle, settings) as engine:
            engine.warm_up()
            freeze_gc()  # as the service does
            measure(engine, queries, rounds=1, candidates=given.candidates)
            times = measure(engine, queries, rounds=given.rounds, candidates=given.candidates)
    if given.opensearch_url:
        parts = cluster_parts(_cluster_sizes(given.opensearch_url, given.index), manifest.documents)
    else:
        parts = part_sizes(manifest, manifest.documents)
    facts = {"documents": manifest.documents, "dimension": manifest.dimension, "top_k": manifest.sparse.top_k}
    return {
        "name": given.name,
        **facts,
        "queries": len(queries),
        "rounds": given.rounds,
        "candidates": given.candidates,
        "command": given.command,
        **origin(),
        "parts": [
            {"name": part.name, "in_memory": part.in_memory, "fixed": 0 if part.bytes_per_document else part.bytes}
            | {"per_document": four_digits(part.bytes_per_document)}
            for part in parts
        ],
        "ms": times,
    }


@program(
    option("bundle", Path, "the bundle, whose documents a cluster has, too"),
    option("--name", str, "name of the shard in the tables"),
    QUERIES,
    option("--times", Path, "file to record the times in, .json.gz"),
    option("--opensearch-url", None, "address of a cluster that has the bundle"),
    option("--index", None, "its index there"),
    option("--count", 200, "queries"),
    option("--rounds", 20, "how often each is asked; 0: only the sizes"),
    option("--candidates", 100, "candidates per leg"),
    option("--seed", 7, "order of the queries"),
)
def main(given: Namespace) -> None:
    """Measure a shard and record it."""
    shard = _measured(given)
    _record(given.times, shard)
    for trip, values in shard["ms"].items():
        p50, p99 = np.percentile(values, [50, 99])
        print(f"{trip:8} p50 {p50:.3g} ms, p99 {p99:.3g} ms")


if __name__ == "__main__":
    sys.exit(main())
