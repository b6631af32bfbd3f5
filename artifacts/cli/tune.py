"""The command `lightretriever tune`. The context's `obj` opens a bundle for searching (`OpenSearcher`)."""

from pathlib import Path
from typing import Annotated

import typer

from lightretriever.artifacts.cli.options import BundleArgument, TaskOption
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.errors import importing

__all__ = ["tune"]


def tune(
    context: typer.Context,
    bundle: BundleArgument,
    dev: Annotated[Path, typer.Option(help="BEIR folder with queries and qrels that are no test set.")],
    split: Annotated[str, typer.Option(help="Which qrels: qrels/SPLIT.tsv.")] = "dev",
    task: TaskOption = None,
    step: Annotated[float, typer.Option(help="Distance of the weights to try.")] = 0.1,
    queries: Annotated[int, typer.Option(min=20, help="Most queries; of more, a sample is drawn.")] = 1000,
    as_json: JsonOption = False,
) -> None:
    """Choose the legs' weights by judged queries, and say whether the gain is beyond chance."""
    with running("tune", as_json=as_json) as job:
        with importing("pipeline"):
            from lightretriever.artifacts.evaluation.tune import tune_weights
        job.summary = tune_weights(context.obj, bundle, dev, split=split, task=task, step=step, most=queries)
