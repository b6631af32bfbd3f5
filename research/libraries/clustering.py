"""Compare Faiss's ways to cluster documents into inverted lists: time to train, and what a search then finds.

    python -m research.libraries.clustering BUNDLE --queries FOLDER --work FOLDER \\
        --results docs/results/speed.json

Takes the vectors of the bundle's documents and those that its token table makes of the queries. Each way trains the
same number of lists from the same documents, in turns; every index then scores all dimensions of the documents in the
`nprobe` nearest lists, so that only the lists differ. Writes, for each way, the median seconds, the recall of the exact
best 100, and how many documents a search scored.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import faiss
import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dense.build import lists_by_size
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.loadtest.generator import read_texts
from lightretriever.loadtest.record import four_digits, record, typed

from research.libraries.library import DEPTH, Row, Source, encode

__all__ = ["main"]

Vectors = npt.NDArray[np.float32]

WAYS: Final[dict[str, Row]] = {
    "k-means, 20 iterations": {},
    "k-means, early stop at 0.01": {"early_stop_threshold": 0.01},
    "SuperKMeans": {"use_super_kmeans": True},
    "SuperKMeans, early stop at 0.01": {"use_super_kmeans": True, "early_stop_threshold": 0.01},
}
"""Fields of Faiss's ClusteringParameters, by the name of the way."""
_ITERATIONS: Final = 20
_PROBED: Final = (64, 32, 16)
"""A search probes one list in so many."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write the results; returns the exit status."""
    parser = argparse.ArgumentParser(description="Compare Faiss's ways to cluster the documents of a bundle.")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="file or folder with queries in BEIR layout")
    parser.add_argument("--work", type=Path, required=True, help="folder for the documents' vectors")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--count", type=int, default=500, help="queries (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="times that each way is trained (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        source = Source(Bundle.open(given.bundle), given.work)
        queries = np.stack(
            [one.dense for one in encode(source.bundle, read_texts(given.queries, seed=0)[: given.count])]
        )
        rows = compare(np.ascontiguousarray(source.vectors()), queries, given.turns)
    except LightRetrieverError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    record(given.results, rows, typed("research.libraries.clustering", arguments), whole=["clustering"])
    print(json.dumps(rows, indent=1))
    return 0


def compare(vectors: Vectors, queries: Vectors, turns: int) -> list[Row]:
    """Measure each way over documents (N, D) and queries (q, D), of length 1: one row each."""
    exact = faiss.IndexFlatIP(vectors.shape[1])
    exact.add(vectors)
    best = exact.search(queries, DEPTH)[1]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    indexes: dict[str, Any] = {}
    for _ in range(turns):
        for way, parameters in WAYS.items():
            indexes[way] = index = _untrained(len(vectors), vectors.shape[1], parameters)
            began = time.perf_counter()
            index.train(vectors)
            seconds[way].append(time.perf_counter() - began)
    rows = []
    for way, index in indexes.items():
        index.add(vectors)
        searches = [_search(index, queries, best, max(1, index.nlist // part)) for part in _PROBED]
        took = four_digits(float(np.median(seconds[way])))
        row = {"key": "clustering", "setting": way, "value": took, "unit": "s to train", "documents": len(vectors)}
        rows.append(row | {"lists": index.nlist, "queries": len(queries), "searches": searches})
    return rows


def _untrained(documents: int, dimension: int, parameters: Row) -> Any:
    index: Any = faiss.index_factory(dimension, f"IVF{lists_by_size(documents)},Flat", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = _ITERATIONS
    for name, value in parameters.items():
        setattr(index.cp, name, value)
    return index


def _search(index: Any, queries: Vectors, best: npt.NDArray[np.int64], nprobe: int) -> Row:
    index.nprobe = nprobe
    statistics: Any = faiss.cvar  # its members are not in the stubs
    statistics.indexIVF_stats.reset()
    found = index.search(queries, DEPTH)[1]
    scored = statistics.indexIVF_stats.ndis / len(queries)
    recall = np.mean([np.isin(one, other).mean() for one, other in zip(best, found, strict=True)])
    return {"nprobe": nprobe, "recall@100": four_digits(float(recall)), "documents_scored": round(float(scored))}


if __name__ == "__main__":
    sys.exit(main())
