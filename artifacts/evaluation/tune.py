"""Which weights the legs of a bundle should have, by judged queries that are no test set, and whether the dense leg
brings anything; and whether a leg is weak for the corpus, where there are no judged queries.

`tune_weights` searches with every query and every division of the weights, through the engine that serves. Weights that
are chosen and measured on the same queries look better than they are. So each query is measured with the weights that
the other queries choose: the queries are split into folds, and a fold gets the weights that are best on the rest.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final, Literal, TypeAlias

import numpy as np

from lightretriever.artifacts.bundle.manifest import LegWeights
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dtypes import Float64Array
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.evaluation.evaluate import fusion_of
from lightretriever.artifacts.evaluation.runs import (
    JudgedQueries,
    measure,
    ndcg_per_query,
    ranking,
    read_judged,
    relevant_but_missing,
)
from lightretriever.artifacts.evaluation.searching import Fusion, OpenSearcher, Searcher
from lightretriever.artifacts.evaluation.systems import DEPTH, Searches, run_systems
from lightretriever.artifacts.progress import ProgressBar
from lightretriever.artifacts.summary import Part, Summary, Text
from lightretriever.artifacts.tokens.tokenizer import sentences_of

__all__ = [
    "Difference",
    "Division",
    "KnownItems",
    "TuneSummary",
    "dense_helps",
    "find_known_items",
    "tune_weights",
    "weight_grid",
]

RankByBm25: TypeAlias = Callable[[Sequence[str], int], list[list[tuple[str, float]]]]
"""Ids and BM25 scores of the best documents for each query, at most so many."""

_SEED: Final = 0  # of all that is drawn
_FOLDS: Final = 10
_RESAMPLES: Final = 10_000
_K: Final = 10
_ITEMS: Final = 200  # documents that are looked for
_ITEM_WORDS: Final = range(4, 21)  # words of a query made of a document
_SHOWN: Final = 5  # divisions that people see
_SPARSE_ALONE: Final = 0  # its place in `weight_grid`
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


class Division(Part):
    """Weights by leg, their nDCG@10, and whether the queries can't tell them from the best."""

    weights: dict[str, float]
    ndcg: float
    by_chance: bool


class TuneSummary(Summary):
    """Of `evaluate --tune`: `weights` are the best by leg and `ndcg` their nDCG@10, `own_weights` and `own_ndcg` the
    bundle's. `gain` is what the choice gains on queries that took no part in it, `interval` its 95 % interval, and
    `told` whether that lies above 0. `dense_gain` and `dense_interval` are the same against the sparse leg alone, and
    `dense_helps` says whether the dense leg makes search better, null where the queries can't tell. `divisions` has
    every division of the weights, best first."""

    command: Literal["evaluate"] = "evaluate"
    dataset: Text
    queries: int
    weights: dict[str, float]
    ndcg: float
    own_weights: dict[str, float]
    own_ndcg: float
    gain: float
    interval: tuple[float, float]
    told: bool
    dense_gain: float
    dense_interval: tuple[float, float]
    dense_helps: bool | None
    divisions: list[Division]

    def made(self) -> Iterator[str]:
        """The best weights, the bundle's, and what to do."""
        for number, one in enumerate(self.divisions[:_SHOWN]):
            beside = "the best" if not number else "within chance of the best" if one.by_chance else "worse"
            yield f"{_named(one.weights)}: nDCG@10 {one.ndcg:.4f}, {beside}"
        if alike := sum(one.by_chance for one in self.divisions[_SHOWN:]):
            yield f"and {alike} more within chance of the best"
        yield f"{_named(self.own_weights)}, the bundle's own: nDCG@10 {self.own_ndcg:.4f}"
        low, high = self.interval
        yield (
            f"choosing weights gains {self.gain:+.4f} on queries that took no part in the choice "
            f"(95 % interval {low:+.4f} to {high:+.4f}, {self.queries:,} queries)"
        )
        low, high = self.dense_interval
        gain = f"{self.dense_gain:+.4f} (95 % interval {low:+.4f} to {high:+.4f}) against the sparse leg alone"
        if self.dense_helps:
            yield f"the dense leg brings {gain}"
        elif self.dense_helps is None:
            yield f"these queries can't tell whether the dense leg helps: {gain}"
        else:
            yield f"the dense leg brings nothing here, {gain}: index.weights: {{sparse: 1}} does as well"
        if self.told:
            best = _named(self.weights, ": ")
            yield f"set index.weights: {{{best}}} in the recipe and run `lightretriever build --from index` again"
        else:
            yield "these queries can't tell that other weights are better: keep the bundle's, or give more queries"


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
    step: float = 0.1,
    most: int = 1000,
) -> TuneSummary:
    """Choose the weights of linear fusion by the judged queries of DEV/qrels/SPLIT.tsv, at most `most` drawn ones.

    All divisions of 1 into multiples of `step` among the bundle's legs are tried. Raises BundleError for a bundle or
    task that can't be used, CorpusError for a collection that can't be read or has nothing in common with the bundle,
    RecipeError for a bundle with one leg, a step that does not divide 1, or fewer queries than folds.
    """
    bundle = Bundle.open(bundle_path)
    if bundle.manifest.dense is None:
        raise RecipeError(
            f"{bundle_path}: the bundle has one leg, the sparse one, so there are no weights to choose.",
            remedy="Build it with index.dense: true to compare both.",
        )
    task = task or bundle.manifest.default_task
    bundle.task(task)
    fusion = fusion_of("linear", None, bundle.manifest)
    own = fusion.weights
    grid = weight_grid(step)
    judged = _drawn(read_judged(dev, split), most)
    if len(judged.queries) < 2 * _FOLDS:
        raise RecipeError(
            f"{dev}: {len(judged.queries)} judged queries are too few to choose weights by.",
            remedy=f"Give {2 * _FOLDS} or more; a hundred tell little, a thousand much.",
        )
    with bundle.sparse() as index:
        relevant_but_missing(judged, set(index.ids()))
    with (
        open_searcher(bundle) as searcher,
        ProgressBar("tune", total=(len(grid) + 1) * len(judged.queries), unit="searches") as progress,
    ):
        values = np.array(
            [_ndcg(searcher, judged, task, replace(fusion, weights=one), progress) for one in [*grid, own]],
            dtype=np.float64,
        )
    tried, means, chosen = values[:-1], values[:-1].mean(axis=1), _out_of_fold(values[:-1])
    order = np.argsort(-means, kind="stable").tolist()
    gain, dense_gain = (Difference.of(chosen - other) for other in (values[-1], tried[_SPARSE_ALONE]))
    divisions = [
        Division(
            weights=grid[place].model_dump(),
            ndcg=float(means[place]),
            by_chance=Difference.of(chosen - tried[place]).low <= 0,
        )
        for place in order
    ]
    return TuneSummary(
        path=str(bundle_path),
        dataset=dev.resolve().name,
        queries=len(judged.queries),
        weights=divisions[0].weights,
        ndcg=divisions[0].ndcg,
        own_weights=own.model_dump(),
        own_ndcg=float(values[-1].mean()),
        gain=gain.mean,
        interval=(gain.low, gain.high),
        told=gain.low > 0,
        dense_gain=dense_gain.mean,
        dense_interval=(dense_gain.low, dense_gain.high),
        dense_helps=dense_helps(dense_gain),
        divisions=divisions,
    )


def weight_grid(step: float) -> list[LegWeights]:
    """All divisions of 1 into multiples of `step` between dense and sparse, the sparse leg alone first.

    Raises RecipeError unless 1 is such a multiple.
    """
    parts = round(1 / step) if step > 0 else 0
    if not 1 <= parts <= 100 or abs(parts * step - 1) > 1e-9:
        raise RecipeError(f"the step is {step:g}.", remedy="Give one that divides 1, such as 0.1 or 0.05.")
    return [LegWeights(dense=dense / parts, sparse=(parts - dense) / parts) for dense in range(parts + 1)]


def _drawn(judged: JudgedQueries, most: int) -> JudgedQueries:
    ids = list(judged.queries)
    if len(ids) > most:
        places = np.sort(np.random.default_rng(_SEED).permutation(len(ids))[:most])
        ids = [ids[place] for place in places.tolist()]
    return JudgedQueries({name: judged.queries[name] for name in ids}, {name: judged.qrels[name] for name in ids}, [])


def _ndcg(searcher: Searcher, judged: JudgedQueries, task: str, fusion: Fusion, progress: ProgressBar) -> list[float]:
    """nDCG@10 of every query with this fusion."""
    run = {}
    for query_id, text in judged.queries.items():
        hits = searcher.search(text, task=task, mode="hybrid", k=_K, candidates=DEPTH, fusion=fusion)
        run[query_id] = ranking([(hit.id, hit.score) for hit in hits or []])
        progress.advance(1)
    found = ndcg_per_query(judged.qrels, run)
    return [found[query_id] for query_id in judged.queries]


def _out_of_fold(values: Float64Array) -> Float64Array:
    """Each query's value (q,) with the weights that are best on the other folds; `values` (weights, q)."""
    chosen = np.empty(values.shape[1])
    for fold in np.array_split(np.random.default_rng(_SEED).permutation(values.shape[1]), _FOLDS):
        others = np.delete(values, fold, axis=1).mean(axis=1)
        chosen[fold] = values[int(np.argmax(others)), fold]
    return chosen


@dataclass(frozen=True)
class KnownItems:
    """How well a bundle finds documents by their own words: the mean reciprocal rank among the first ten, by system,
    over a number of `queries`, and how much its search differs from BM25 in nDCG@10: hybrid, or the sparse leg alone
    where there is no other."""

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


def find_known_items(open_searcher: OpenSearcher, bundle: Bundle, bm25: RankByBm25) -> KnownItems | None:
    """Search for drawn documents by a sentence of theirs or, where none will do, the title, so that no judgment is
    needed. None where fewer than 20 documents have one.

    `bm25` ranks documents for the queries by their words: it is at its best with such queries, and a good leg finds
    most of what it finds.
    """
    dense = bundle.manifest.dense is not None
    systems = ("dense", "sparse", "hybrid") if dense else ("sparse",)
    with bundle.sparse() as index:
        places = np.random.default_rng(_SEED).permutation(index.count)[: 2 * _ITEMS]
        queries = dict(islice(_item_queries(index.documents(places)), _ITEMS))
        if len(queries) < 2 * _FOLDS:
            return None
        judged = JudgedQueries(queries, {name: {name: 1} for name in queries}, [])
        fusion = fusion_of("linear", None, bundle.manifest)
        searches = Searches(bundle.manifest.default_task, DEPTH, fusion, systems, dense=dense)
        with open_searcher(bundle) as searcher:
            runs = run_systems(searcher, index, judged, searches).runs
    found = bm25(list(queries.values()), DEPTH)
    runs["bm25"] = {name: ranking(hits) for name, hits in zip(queries, found, strict=True)}
    ndcg = {system: ndcg_per_query(judged.qrels, run) for system, run in runs.items()}
    ours = ndcg["hybrid" if dense else "sparse"]
    values = np.array([ours[name] - ndcg["bm25"][name] for name in queries])
    mrr = {system: measure(judged.qrels, run)["MRR@10"] for system, run in runs.items()}
    return KnownItems(mrr, Difference.of(values), len(queries))


def _item_queries(documents: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """Id and query of each document that has a sentence of a query's length: the longest one."""
    for raw in documents:
        document = json.loads(raw)
        found = sentences_of("", str(document.get("text") or "")) or sentences_of(str(document.get("title") or ""), "")
        fitting = [text for text in found if len(text.split()) in _ITEM_WORDS]
        if fitting:
            yield document["_id"], max(fitting, key=len)


def _named(weights: dict[str, float], equals: str = "=") -> str:
    return ", ".join(f"{leg}{equals}{weight:g}" for leg, weight in weights.items() if weight)
