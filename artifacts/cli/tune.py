"""The command `lightretriever tune`. The context's `obj` opens a bundle for searching (`OpenSearcher`)."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.cli.summary import Part, Summary, Text
from lightretriever.artifacts.errors import MissingExtraError

if TYPE_CHECKING:
    from lightretriever.artifacts.evaluation.tune import Tuned

__all__ = ["DivisionInfo", "TuneSummary", "tune"]

_SHOWN = 5


class DivisionInfo(Part):
    """Weights by leg, their nDCG@10, and whether the queries can't tell them from the best."""

    weights: dict[str, float]
    ndcg: float
    by_chance: bool


class TuneSummary(Summary):
    """Of `tune`: `weights` are the best by leg and `ndcg` their nDCG@10, `own_weights` and `own_ndcg` the bundle's.
    `gain` is what the choice gains on queries that took no part in it, `interval` its 95 % interval, and `told` whether
    that lies above 0. `dense_gain` and `dense_interval` are the same against the sparse leg alone, and `dense_helps`
    says whether the dense leg makes search better, null where the queries can't tell. `divisions` has every division of
    the weights, best first."""

    command: Literal["tune"]
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
    divisions: list[DivisionInfo]

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
            yield f"set index.weights: {{{best}}} in the recipe and run `lightretriever index` again"
        else:
            yield "these queries can't tell that other weights are better: keep the bundle's, or give more queries"


def tune(
    context: typer.Context,
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.", show_default=False)],
    dev: Annotated[Path, typer.Option(help="BEIR folder with queries and qrels that are no test set.")],
    split: Annotated[str, typer.Option(help="Which qrels: qrels/SPLIT.tsv.")] = "dev",
    task: Annotated[str | None, typer.Option(help="The bundle's task (default: the bundle's default task).")] = None,
    candidates: Annotated[int, typer.Option(min=10, help="Candidates each leg proposes.")] = 100,
    step: Annotated[float, typer.Option(help="Distance of the weights to try.")] = 0.1,
    queries: Annotated[int, typer.Option(min=20, help="Most queries; more are drawn from.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Choose the legs' weights by judged queries, and say whether they tell."""
    with running("tune", as_json=as_json) as job:
        try:
            from lightretriever.artifacts.evaluation.tune import tune_weights
        except ModuleNotFoundError as error:
            raise MissingExtraError.of(error) from error
        found = tune_weights(
            context.obj, bundle, dev, split=split, task=task, candidates=candidates, step=step, most=queries
        )
        job.summary = _summary(found, bundle, dev)


def _summary(found: "Tuned", bundle: Path, dev: Path) -> TuneSummary:
    return TuneSummary(
        command="tune",
        path=str(bundle),
        dataset=dev.resolve().name,
        queries=found.queries,
        weights=found.best.model_dump(),
        ndcg=found.divisions[0].ndcg,
        own_weights=found.own.model_dump(),
        own_ndcg=found.own_ndcg,
        gain=found.gain.mean,
        interval=(found.gain.low, found.gain.high),
        told=found.told,
        dense_gain=found.dense_gain.mean,
        dense_interval=(found.dense_gain.low, found.dense_gain.high),
        dense_helps=found.dense_helps,
        divisions=[
            DivisionInfo(weights=one.weights.model_dump(), ndcg=one.ndcg, by_chance=one.by_chance)
            for one in found.divisions
        ],
    )


def _named(weights: dict[str, float], equals: str = "=") -> str:
    return ", ".join(f"{leg}{equals}{weight:g}" for leg, weight in weights.items() if weight)
