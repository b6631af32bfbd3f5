"""Which weights the legs of a bundle should have, by judged queries that are no test set, and whether the dense leg
brings anything; and whether a leg is weak for the corpus, where there are no judged queries.

Weights that are chosen and measured on the same queries look better than they are. So the queries are split into folds,
and each fold is measured with the weights that are best on the others.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from lightretriever.artifacts.bundle.manifest import LegWeights
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dtypes import Float64Array
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.evaluation.bm25 import run_bm25
from lightretriever.artifacts.evaluation.evaluate import DEPTH, chosen_systems, fusion_of, run_systems
from lightretriever.artifacts.evaluation.runs import (
    JudgedQueries,
    measure,
    ndcg_per_query,
    ranking,
    read_judged,
    relevant_but_missing,
)
from lightretriever.artifacts.evaluation.searching import Fusion, OpenSearcher, Searcher
from lightretriever.artifacts.reports import ProgressBar, Summary
from lightretriever.artifacts.tokens.tokenizer import sentences_of

_SEED: Final = 0  # of all that is drawn
_FOLDS: Final = 10
_RESAMPLES: Final = 10_000
_K: Final = 10
_ITEMS: Final = 200  # documents that are looked for
_ITEM_WORDS: Final = range(4, 21)  # words of a query made of a document
_MAX_QUERIES: Final = 1000  # queries; of more, a sample is drawn
_GRID: Final = [LegWeights(dense=dense / 10, sparse=(10 - dense) / 10) for dense in range(11)]
_SPARSE_ALONE: Final = 0  # its place in `_GRID`
_WEAK: Final = 0.5  # of BM25's mean reciprocal rank
_LITTLE: Final = 0.005  # of nDCG@10: a gain that is certainly below is none


@dataclass(frozen=True)
class Difference:
    """A mean difference over queries, with its 95 % interval by bootstrap."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Float64Array) -> "Difference":
        """Of the differences of single queries (q,)."""
        drawn = np.random.default_rng(_SEED).integers(len(values), size=(_RESAMPLES, len(values)))
        low, high = np.percentile(values[drawn].mean(axis=1), (2.5, 97.5))
        return cls(float(values.mean()), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.mean:+.4f} (95 % interval {self.low:+.4f} to {self.high:+.4f})"


def dense_helps(gain: Difference) -> bool | None:
    """True if the dense leg makes search better, by what it gains over the sparse leg alone; None where the queries
    can't tell."""
    if gain.low > 0:
        return True
    return False if gain.mean <= 0 or gain.high < _LITTLE else None


def tune_weights(
    open_searcher: OpenSearcher,
    bundle_path: Path,
    dev: Path,
    *,
    split: str = "dev",
    task: str | None = None,
) -> Summary:
    """Choose the weights of linear fusion by the judged queries of DEV/qrels/SPLIT.tsv, at most 1,000 drawn ones.

    All divisions of 1 into tenths between the legs are tried. Raises BundleError for a bundle or task that can't be
    used, CorpusError as `read_judged`, RecipeError for a bundle with one leg, or too few queries.
    """
    bundle = Bundle.open(bundle_path)
    if bundle.manifest.dense is None:
        raise RecipeError(
            f"{bundle_path}: the bundle has one leg, the sparse one, so there are no weights to choose.",
            remedy="Build it with index.dense: true to compare both.",
        )
    task = task or bundle.manifest.default_task
    bundle.task(task)
    fusion = fusion_of(bundle.manifest)
    judged = read_judged(dev, split)
    places = np.random.default_rng(_SEED).permutation(len(judged.queries))[:_MAX_QUERIES]
    ids = [list(judged.queries)[position] for position in np.sort(places).tolist()]
    judged = JudgedQueries({name: judged.queries[name] for name in ids}, {name: judged.qrels[name] for name in ids}, [])
    if len(judged.queries) < 2 * _FOLDS:
        raise RecipeError(
            f"{dev}: {len(judged.queries)} judged queries are too few to choose weights by.",
            remedy=f"Give {2 * _FOLDS} or more; a hundred tell little, a thousand much.",
        )
    with bundle.sparse() as index:
        relevant_but_missing(judged, set(index.ids()))
    fusions = [*(replace(fusion, weights=weights) for weights in _GRID), fusion]
    with (
        open_searcher(bundle) as searcher,
        ProgressBar("tune", total=len(fusions) * len(judged.queries), unit="searches") as progress,
    ):
        values = np.array([_ndcg(searcher, judged, task, used, progress) for used in fusions], dtype=np.float64)
    tried, own = values[:-1], values[-1]
    means, chosen = tried.mean(axis=1), _out_of_fold(tried)
    order = np.argsort(-means, kind="stable").tolist()
    gain, dense_gain = (Difference.of(chosen - other) for other in (own, tried[_SPARSE_ALONE]))
    divisions = [
        {
            "weights": _GRID[position].model_dump(),
            "ndcg": float(means[position]),
            "by_chance": Difference.of(chosen - tried[position]).low <= 0,
        }
        for position in order
    ]
    facts = {"dataset": dev.resolve().name, "queries": len(judged.queries)}
    facts |= {"weights": divisions[0]["weights"], "ndcg": divisions[0]["ndcg"]}
    facts |= {"own_weights": fusion.weights.model_dump(), "own_ndcg": float(own.mean())}
    facts |= {"gain": gain.mean, "interval": (gain.low, gain.high), "told": gain.low > 0}
    facts |= {"dense_gain": dense_gain.mean, "dense_interval": (dense_gain.low, dense_gain.high)}
    facts |= {"dense_helps": dense_helps(dense_gain), "divisions": divisions}
    return Summary(str(bundle_path), _lines(facts, gain, dense_gain), facts)


def _lines(facts: Mapping[str, Any], gain: Difference, dense_gain: Difference) -> list[str]:
    """The best weights, the bundle's, and what to do."""
    lines = list[str]()
    for number, division in enumerate(facts["divisions"]):
        beside = "the best" if not number else "within chance of the best" if division["by_chance"] else "worse"
        lines.append(f"{_named(division['weights'])}: nDCG@10 {division['ndcg']:.4f}, {beside}")
    lines.append(f"{_named(facts['own_weights'])}, the bundle's own: nDCG@10 {facts['own_ndcg']:.4f}")
    lines.append(f"choosing weights gains {gain} on {facts['queries']:,} queries that took no part in the choice")
    against = f"{dense_gain} against the sparse leg alone"
    lines.append(
        {
            True: f"the dense leg brings {against}",
            None: f"these queries can't tell whether the dense leg helps: {against}",
            False: f"the dense leg brings nothing here, {against}: index.weights: {{sparse: 1}} does as well",
        }[facts["dense_helps"]]
    )
    best = _named(facts["weights"], ": ")
    advice = f"set index.weights: {{{best}}} in the recipe and run `lightretriever build --from index` again"
    kept = "these queries can't tell that other weights are better: keep the bundle's, or give more queries"
    return [*lines, advice if facts["told"] else kept]


def _ndcg(searcher: Searcher, judged: JudgedQueries, task: str, fusion: Fusion, progress: ProgressBar) -> list[float]:
    """nDCG@10 of every query with this fusion."""
    run = {}
    for query_id, text in judged.queries.items():
        hits = searcher.search(text, task=task, mode="hybrid", k=_K, candidates=DEPTH, fusion=fusion)
        run[query_id] = ranking(hits or [])
        progress.advance(1)
    return list(ndcg_per_query(judged.qrels, run).values())


def _out_of_fold(values: Float64Array) -> Float64Array:
    """Each query's value (q,) with the weights that are best on the other folds; `values` (weights, q)."""
    chosen = np.empty(values.shape[1])
    for fold in np.array_split(np.random.default_rng(_SEED).permutation(values.shape[1]), _FOLDS):
        others = np.delete(values, fold, axis=1).mean(axis=1)
        chosen[fold] = values[int(np.argmax(others)), fold]
    return chosen


@dataclass(frozen=True)
class KnownItems:
    """How well a bundle finds documents by their own words: MRR@10 by system over so many `queries`, and the
    `difference` of its search (hybrid, or the only leg) from BM25 in nDCG@10."""

    mrr: Mapping[str, float]
    difference: Difference
    queries: int

    @property
    def weak(self) -> list[str]:
        """The legs that are weak for this corpus: they find such documents less than half as well as BM25, and search
        ranks them below BM25 beyond chance."""
        if self.difference.high >= 0:
            return []
        return [leg for leg in ("dense", "sparse") if self.mrr.get(leg, 1.0) < _WEAK * self.mrr["bm25"]]


def find_known_items(open_searcher: OpenSearcher, bundle: Bundle, scratch: Path) -> KnownItems | None:
    """Search for drawn documents by a sentence of theirs or, where none will do, the title, so that no judgment is
    needed. None where fewer than 20 documents have one. BM25 has an index in the folder `scratch` that is removed
    again."""
    dense = bundle.manifest.dense is not None
    with bundle.sparse() as index:
        places = np.random.default_rng(_SEED).permutation(index.count)[: 2 * _ITEMS]
        queries = dict(islice(_item_queries(index.documents(places)), _ITEMS))
        if len(queries) < 2 * _FOLDS:
            return None
        judged = JudgedQueries(queries, {name: {name: 1} for name in queries}, [])
        systems = chosen_systems(None, None, dense=dense)
        with open_searcher(bundle) as searcher:
            runs, _ = run_systems(searcher, judged, systems, bundle.manifest.default_task)
        runs["bm25"] = run_bm25(index, queries, scratch, DEPTH)
    ndcg = {system: ndcg_per_query(judged.qrels, run) for system, run in runs.items()}
    ours = ndcg["hybrid" if dense else "sparse"]
    values = np.array([ours[name] - ndcg["bm25"][name] for name in queries])
    mrr = {system: measure(judged.qrels, run)["MRR@10"] for system, run in runs.items()}
    return KnownItems(mrr, Difference.of(values), len(queries))


def _item_queries(documents: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Id and query of each document that has a sentence of a query's length: the longest one."""
    for raw in documents:
        document = json.loads(raw)
        texts = sentences_of("", str(document.get("text") or "")) or sentences_of(str(document.get("title") or ""), "")
        fitting = [text for text in texts if len(text.split()) in _ITEM_WORDS]
        if fitting:
            yield document["_id"], max(fitting, key=len)


def _named(weights: dict[str, float], equals: str = "=") -> str:
    return ", ".join(f"{leg}{equals}{weight:g}" for leg, weight in weights.items() if weight)
