"""nDCG@10 of the ways to fuse both legs, by the same bundles and queries, and by an encoder that reads each query.

    python -m research.quality.fusion BUNDLES RESULT --data DIR --split test [--query-model MODEL] [NAME ...]

BUNDLES/NAME/bundle is the bundle of the collection DIR/NAME. RESULT gets, as JSON, a row for each way and a value for
each collection. Settings are chosen by the splits `train` and `dev`; `test` is measured once.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from lightretriever.artifacts.bundle.manifest import LegWeights
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.full import encode_fully
from lightretriever.artifacts.evaluation.runs import JudgedQueries, ndcg_per_query, ranking, read_judged
from lightretriever.artifacts.evaluation.searching import Fusion, Searcher
from lightretriever.artifacts.pipeline.recipe import ModelRecipe
from lightretriever.loadtest.program import option, program
from lightretriever.service.commands.evaluation import open_searcher
from research.record import origin, write_json

_K: Final = 10
_CANDIDATES: Final = 100
_RANGE: Final = Fusion(LegWeights(dense=0.5, sparse=0.5), normalization="range", feedback=0.0)
_WAYS: Final = {
    "dense leg": replace(_RANGE, weights=LegWeights(dense=1.0)),
    "sparse leg": replace(_RANGE, weights=LegWeights(sparse=1.0)),
    "range": _RANGE,
    "range, feedback": replace(_RANGE, feedback=0.5),
    "evidence": replace(_RANGE, normalization="evidence"),
    "evidence, feedback (default)": replace(_RANGE, normalization="evidence", feedback=0.5),
}


def measure(searcher: Searcher, judged: JudgedQueries, task: str) -> Iterator[tuple[str, list[float]]]:
    """Yield each way's name and the nDCG@10 of every query."""
    for name, fusion in _WAYS.items():
        run = {}
        for query_id, text in judged.queries.items():
            hits = searcher.search(text, task=task, mode="hybrid", k=_K, candidates=_CANDIDATES, fusion=fusion)
            run[query_id] = ranking(hits or [])
        yield name, list(ndcg_per_query(judged.qrels, run).values())


@program(
    option("bundles", Path, "folder of the bundles"),
    option("result", Path, "JSON file to write"),
    option("--data", Path, "folder of the collections"),
    option("--split", "test", "name of the judgments"),
    option("--query-model", "", "an encoder of sentence-transformers, to compare with"),
    option("--collections", "", "names of the collections, with commas between them"),
)
def main(given: Namespace) -> None:
    """Measure and write."""
    rows: dict[str, dict[str, float]] = {}
    for name in given.collections.split(","):
        bundle, judged = Bundle.open(given.bundles / name / "bundle"), read_judged(given.data / name, given.split)
        task = bundle.manifest.default_task
        with open_searcher(bundle) as searcher:
            found = dict(measure(searcher, judged, task))
            if given.query_model:
                model = ModelRecipe(path=given.query_model, device="cpu")
                read, _ = encode_fully(model, bundle, task, list(judged.queries.values()))
                full = measure(read.searcher(searcher, task), judged, task)
                found |= {f"the encoder reads each query: {way}": values for way, values in full}
        for way, values in found.items():
            rows.setdefault(way, {})[name] = round(float(np.mean(values)), 4)
        print(name, {way: row[name] for way, row in rows.items()}, file=sys.stderr, flush=True)
    average = {way: round(float(np.mean(list(row.values()))), 4) for way, row in rows.items()}
    write_json(given.result, {"split": given.split, "nDCG@10": rows, "average": average, "origin": origin()})


if __name__ == "__main__":
    sys.exit(main())
