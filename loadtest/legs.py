"""The two legs against what they are judged by: the dense one against exact search, the sparse one against BM25.

    python -m lightretriever.loadtest.legs BUNDLE --queries FOLDER --work FOLDER --results docs/results/speed.json

dense   Searches per second and core, and recall@100 against the exact best 100 of the vectors that the index holds, for
        the bundle's search parameters and for those around them. The goal counts the fastest with a recall of 0.95.
sparse  The best 100 by impacts, and by Lucene's BM25 on the words of the same documents. Every query is put to
        one and then to the other, so that whatever disturbs the machine disturbs both. --work keeps the word index.
"""

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import faiss
import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.beir import find_file, read_queries
from lightretriever.artifacts.dense.index import DenseIndex, open_dense
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.artifacts.evaluation.quality import typed_command
from lightretriever.artifacts.sparse.bm25 import WordIndex
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.loadtest.record import latency, record
from lightretriever.loadtest.servers.bm25 import word_index
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.search.encoder import EncodedQuery, QueryEncoder

__all__ = ["DensePoint", "compare_sparse", "dense_curve", "dense_rows", "exact_best", "main", "measure", "sparse_rows"]

_K: Final = 100
_LEAST_RECALL: Final = 0.95
_FACTORS: Final = (0.125, 0.25, 0.5, 0.75, 1.0, 2.0)
_WIDTHS: Final = ("nprobe", "efSearch")
_CHUNK: Final = 65_536

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class DensePoint:
    """One setting of the search parameters: recall@k, the seconds of every search, and whether it is the bundle's."""

    parameters: dict[str, float]
    recall: float
    seconds: list[float]
    own: bool

    @property
    def qps(self) -> float:
        """Searches per second of one thread, by the median."""
        return 1.0 / float(np.median(self.seconds))


def exact_best(index: DenseIndex, queries: Vectors, k: int) -> npt.NDArray[np.int64]:
    """The exact best `k` documents (q, k) of queries (q, D), by the vectors as the index holds them."""
    best = faiss.ResultHeap(len(queries), min(k, index.count), keep_max=True)
    for start in range(0, index.count, _CHUNK):
        ordinals = np.arange(start, min(start + _CHUNK, index.count), dtype=np.int64)
        scores = queries @ index.vectors(ordinals).T
        count = min(k, len(ordinals))
        top = np.argpartition(-scores, count - 1, axis=1)[:, :count]
        best.add_result(np.take_along_axis(scores, top, axis=1), ordinals[top])
    best.finalize()
    found: npt.NDArray[np.int64] = best.I
    return found


def dense_curve(bundle: Bundle, queries: Vectors, k: int = _K) -> list[DensePoint]:
    """Recall and speed of the bundle's dense index by its search width (nprobe, efSearch); one point if it has none."""
    given = dict(bundle.manifest.dense.parameters)
    widths = [name for name in _WIDTHS if name in given]
    settings = [given]
    if widths:
        width = widths[0]
        settings = [{**given, width: max(1.0, round(given[width] * factor))} for factor in _FACTORS]
    info = bundle.manifest.dense
    truth = [set(row) for row in exact_best(bundle.dense(), queries, k).tolist()]
    measured = [_measured(open_dense(bundle.path, info, setting), queries, truth, k) for setting in settings]
    return [DensePoint(setting, *one, own=setting == given) for setting, one in zip(settings, measured, strict=True)]


def _measured(index: DenseIndex, queries: Vectors, truth: Sequence[set[int]], k: int) -> tuple[float, list[float]]:
    shared, seconds = 0, []
    for query, wanted in zip(queries, truth, strict=True):
        begun = perf_counter()
        found, _ = index.search(query, k)
        seconds.append(perf_counter() - begun)
        shared += len(wanted.intersection(found.tolist()))
    return shared / sum(map(len, truth)), seconds


def compare_sparse(
    impacts: ImpactIndex, words: WordIndex, texts: Sequence[str], encoded: Sequence[EncodedQuery], k: int = _K
) -> tuple[list[float], list[float]]:
    """Seconds of every search by impacts and by BM25 on words, alternated."""
    ours, theirs = [], []
    for text, query in zip(texts, encoded, strict=True):
        begun = perf_counter()
        impacts.search(query.terms, query.weights, k)
        middle = perf_counter()
        words.search(text, k)
        theirs.append(perf_counter() - middle)
        ours.append(middle - begun)
    return ours, theirs


def dense_rows(
    points: Sequence[DensePoint], facts: Mapping[str, Any], known: float | None = None
) -> list[dict[str, Any]]:
    """Rows for the file of speeds: one per setting, and the bundle's own again, if it finds enough. `known` is its
    recall by the vectors before they became codes, None where it is exact."""
    rows = []
    for point in points:
        setting = ", ".join(f"{name} {value:g}" for name, value in point.parameters.items()) or "exact"
        values = {**latency(point.seconds, 1e6), "recall@100": round(point.recall, 4), "qps": round(point.qps)}
        rows.append({"key": "dense", "setting": setting, "unit": "µs", **values, **facts})
    for point in points:
        if point.own and min(point.recall, 1.0 if known is None else known) >= _LEAST_RECALL:
            found = {"value": round(point.qps), "recall@100": round(point.recall, 4), "parameters": point.parameters}
            before = {} if known is None else {"recall@100 before codes": known}
            rows.append({"key": "dense_qps_per_core", "unit": "queries/s", **found, **before, **facts})
    return rows


def sparse_rows(ours: Sequence[float], theirs: Sequence[float], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows for the file of speeds: both searches, and the ratio of their quantiles."""
    mine, other = latency(ours, 1e6), latency(theirs, 1e6)
    ratios = {name: round(mine[name] / other[name], 3) for name in mine}
    return [
        {"key": "sparse", "setting": "impacts", "unit": "µs", **mine, **facts},
        {"key": "sparse", "setting": "BM25 on words", "unit": "µs", **other, **facts},
        {"key": "sparse_vs_bm25", "unit": "ratio", **ratios, **facts},
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and record; returns the exit status."""
    given = _parser().parse_args(arguments)
    try:
        texts = list(read_queries(find_file(given.queries, "queries")).values())
        random.Random(given.seed).shuffle(texts)
        bundle = Bundle.open(given.bundle)
        bundle.check_hashes()  # into the page cache, as in the service
        rows = measure(bundle, texts[: given.count], given.work)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows:
        name = f"{row['key']} {row.get('setting', '')}"
        print(
            f"{name:50s} "
            + "  ".join(f"{key} {row[key]:,}" for key in ("p50", "p99", "value", "recall@100") if key in row)
        )
    if given.results is not None:
        words = ["python", "-m", "lightretriever.loadtest.legs", *(arguments or sys.argv[1:])]
        record(given.results, rows, typed_command(words), whole=("dense", "dense_qps_per_core"))
    return 0


def measure(bundle: Bundle, texts: Sequence[str], work: Path) -> list[dict[str, Any]]:
    """All rows for a bundle."""
    manifest = bundle.manifest
    tables = {task: bundle.table(task) for task in manifest.tasks}
    encoder = QueryEncoder(bundle.tokenizer(), tables, bundle.idf())
    encoded = [encoder.encode(text, manifest.default_task, StageClock()) for text in texts]
    facts = {"documents": manifest.documents, "dimension": manifest.dimension, "queries": len(texts)}
    curve = dense_curve(bundle, np.stack([query.dense for query in encoded if query.dense is not None]))
    rows = dense_rows(curve, facts, manifest.dense.recall)
    with bundle.sparse() as impacts:
        words = WordIndex.open(word_index(bundle, impacts, work))
        try:
            compare_sparse(impacts, words, texts, encoded)  # warms both up
            rows += sparse_rows(*compare_sparse(impacts, words, texts, encoded), facts)
        finally:
            words.close()
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="The legs of a bundle against exact search and BM25.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="folder with queries.jsonl(.gz)")
    parser.add_argument("--work", type=Path, required=True, help="folder for the word index")
    parser.add_argument("--count", type=int, default=1000, help="queries to measure with (1000)")
    parser.add_argument("--seed", type=int, default=0, help="order of the queries")
    parser.add_argument("--results", type=Path, help="file of speeds to record in")
    return parser


if __name__ == "__main__":
    sys.exit(main())
