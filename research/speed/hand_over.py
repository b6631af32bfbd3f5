"""When it pays that Faiss searches in another thread while Lucene searches: the measurement behind `HAND_OVER_BYTES`.

    python -m research.speed.hand_over BUNDLE --queries FOLDER --results docs/results/speed.json

The sparse leg is the bundle's, the dense one an exhaustive index (SQ8) of random vectors, of several sizes. Every query
is searched in both legs in two ways in turn, and once alone in each: one leg after the other in one thread, and with
Faiss in its lane meanwhile. Both ways are those of `LocalBackends`; `hands_over` chooses between them.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Final

import faiss
import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.overlap import dense_info
from lightretriever.loadtest.program import BUNDLE, QUERIES, SPEED, option, program
from lightretriever.loadtest.record import four_digits, median
from lightretriever.service.backends.base import EncodedQuery, Leg
from lightretriever.service.backends.faiss import FaissDense
from lightretriever.service.backends.local import DENSE_LANE, HAND_OVER_BYTES
from lightretriever.service.execution.executor import Executor, call_here
from lightretriever.service.granted import processors
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.engine import SearchEngine
from research.harness.rows import record

__all__ = ["main", "measure"]

_MIB: Final = (1, 2, 4, 8, 16, 32)
_CANDIDATES: Final = 100
_BATCH: Final = 10_000
_PATIENCE_S: Final = 60.0


def measure(
    engine: SearchEngine, queries: Sequence[str], sizes_mib: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """Give a row `hand_over` of `speed.json` for each size of the dense index. The engine must be warm."""
    encoder, task = engine.parts.encoder, engine.bundle.manifest.default_task
    asked = [encoder.encode(text, task, StageClock()) for text in queries]
    executor = Executor([], 1, patience_s=_PATIENCE_S)
    executor.add(DENSE_LANE, 1, patience_s=_PATIENCE_S)
    facts = {"queries": len(queries), "processors": processors(), "load_average": [*np.round(os.getloadavg(), 2)]}
    rows = []
    for mib in sizes_mib or _MIB:
        dense = FaissDense(_random_index(engine.bundle.manifest.dimension, mib << 20))
        times = _times(engine, dense, executor, asked)
        ratio = {"value": four_digits(times["inline_us"] / times["handed_us"])}
        rule = {"rule": "handed over" if dense.search_bytes >= HAND_OVER_BYTES else "inline"}
        setting = f"{mib} MiB of the dense index read by a search"
        rows.append({"key": "hand_over", "setting": setting, "unit": "times", **ratio, **times, **rule, **facts})
    executor.close()
    return rows


def _times(
    engine: SearchEngine, dense: FaissDense, executor: Executor, asked: Sequence[EncodedQuery]
) -> dict[str, float]:
    """Give the median microseconds of both legs in each way, and of each leg alone."""
    seconds: dict[str, list[float]] = {name: [] for name in ("inline_us", "handed_us", "dense_us", "sparse_us")}
    for turn, query in enumerate([*asked, *asked]):  # the first half warms up
        ways = _ways(query, dense, engine.parts.backends.legs["sparse"], executor)
        for name in ways if turn % 2 else reversed(ways):
            begun = perf_counter()
            ways[name]()
            if turn >= len(asked):
                seconds[name].append(perf_counter() - begun)
    return {name: median(np.array(values) * 1e6) for name, values in seconds.items()}


def _ways(query: EncodedQuery, dense: Leg, sparse: Leg, executor: Executor) -> dict[str, Callable[[], object]]:
    until = perf_counter() + _PATIENCE_S
    of_dense = partial(dense.search, query, _CANDIDATES)
    of_sparse = partial(sparse.search, query, _CANDIDATES, None, until)
    return {
        "dense_us": of_dense,
        "sparse_us": of_sparse,
        "inline_us": lambda: (call_here(of_dense, until), call_here(of_sparse, until)),
        "handed_us": lambda: executor.gather({DENSE_LANE: of_dense}, until, {"sparse": of_sparse}),
    }


def _random_index(dimension: int, size: int) -> DenseIndex:
    """Make an index of random unit vectors whose codes take `size` bytes."""
    index = faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)
    random, count = np.random.default_rng(0), -(-size // dimension)
    for start in range(0, count, _BATCH):
        vectors = random.standard_normal((min(_BATCH, count - start), dimension)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        if not start:
            index.train(vectors)
        index.add(vectors)
    return DenseIndex(index)


@program(
    BUNDLE,
    QUERIES,
    option("--count", 500, "queries to measure with"),
    option("--seed", 0, "order of the queries"),
    SPEED,
)
def main(given: Namespace) -> None:
    """Measure and record."""
    texts, bundle = read_texts(given.queries, given.seed), Bundle.open(given.bundle)
    dense_info(bundle)  # a bundle without a dense leg has no such rule
    with SearchEngine.open(bundle, hashed=False) as engine:
        engine.warm_up()
        rows = measure(engine, [texts[number % len(texts)] for number in range(given.count)])
    for row in rows:
        print(f"{row['setting']}: inline {row['inline_us']:,} µs, handed over {row['handed_us']:,} µs; {row['rule']}")
    record(given.results, rows, given.command, whole=("hand_over",))


if __name__ == "__main__":
    sys.exit(main())
