"""The command `lightretriever evaluate`. The context's `obj` opens a bundle for searching (`OpenSearcher`)."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from lightretriever.artifacts.cli.runner import BundleArgument, JsonOption, TaskOption, running
from lightretriever.artifacts.errors import RecipeError, importing
from lightretriever.artifacts.reports import Summary, aligned


def evaluate(
    context: typer.Context,
    bundle: BundleArgument,
    dataset: Annotated[
        Path,
        typer.Argument(help="BEIR folder with queries and qrels, or a folder of such folders.", show_default=False),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Folder for evaluation.json and the TREC runs; needed without --tune.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Which qrels: qrels/SPLIT.tsv.", show_default="test; dev with --tune")
    ] = None,
    task: TaskOption = None,
    only: Annotated[list[str] | None, typer.Option(help="A system to run, such as hybrid; may be repeated.")] = None,
    query_model: Annotated[
        str | None, typer.Option(help="Also encode queries by this whole model, the one that encoded the documents.")
    ] = None,
    query_adapter: Annotated[str | None, typer.Option(help="PEFT adapter of the query model.")] = None,
    query_bos_token: Annotated[str | None, typer.Option(help="First token, as model.bos_token of the recipe.")] = None,
    drop_own: Annotated[
        bool, typer.Option("--drop-own", help="Drop hits whose document id is the query's own, as BEIR does.")
    ] = False,
    depth: Annotated[int, typer.Option(help="Hits kept of a query; 1000 for R@1000.")] = 100,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose the legs' weights by queries that are no test set, and end.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Measure dense, sparse, hybrid and BM25 on a test collection, or on each of several with its bundle."""
    with running("evaluate", as_json=as_json) as job:
        if tune:
            with importing("pipeline"):
                from lightretriever.artifacts.evaluation.tune import tune_weights
            job.summary = tune_weights(context.obj, bundle, dataset, split=split or "dev", task=task)
            return
        if output is None:
            raise RecipeError("--output is missing.", remedy="Name the folder of the results, or give --tune.")
        with importing("pipeline"):
            from lightretriever.artifacts.evaluation.evaluate import (
                REPORT_FILE,
                evaluate_all,
                evaluate_bundle,
                is_benchmark,
            )
            from lightretriever.artifacts.pipeline.recipe import ModelRecipe

            measure = partial(
                evaluate_bundle,
                context.obj,
                split=split or "test",
                task=task,
                only=only,
                query_model=ModelRecipe(path=query_model, adapter=query_adapter, bos_token=query_bos_token)
                if query_model
                else None,
                drop_own=drop_own,
                depth=depth,
            )
            several = is_benchmark(dataset)
            report = evaluate_all(measure, bundle, dataset, output) if several else measure(bundle, dataset, output)
        of, runs, warnings = report["dataset"], len(report["runs"]), report["warnings"]
        facts = {"dataset": of["name"], "split": of["split"], "task": report["settings"]["task"]}
        facts |= {"queries": of["queries"], "documents": report["bundle"]["documents"]}
        facts |= {"metrics": report["metrics"], "warnings": warnings}
        facts |= {"report": str(output / REPORT_FILE), "files": 1 + runs}
        lines = [f"warning: {warning}" for warning in warnings]
        lines += [*_lines(report), f"{output}: {REPORT_FILE} and {runs} runs of {of['queries']:,} queries"]
        job.summary = Summary(str(output), lines, facts)


def _lines(report: dict[str, Any]) -> list[str]:
    """The measures of each system; of a benchmark nDCG@10 by collection and system, and the mean row."""
    dataset, metrics = report["dataset"], report["metrics"]
    title = (
        f"{dataset['name']} ({dataset['split']}): {dataset['queries']:,} queries "
        f"({dataset['queries_without_judgments']:,} unjudged), {report['bundle']['documents']:,} documents, "
        f"task {report['settings']['task']}"
    )
    if "collections" in report:
        named = [*report["collections"].items(), ("mean", metrics)]
        rows = [[name, *(f"{of[system]['nDCG@10']:.4f}" for system in metrics)] for name, of in named]
        return [title, *aligned([["nDCG@10", *metrics], *rows])]
    names = list(next(iter(metrics.values())))
    rows = [[system, *(f"{measures[name]:.4f}" for name in names)] for system, measures in metrics.items()]
    return [title, *aligned([["system", *names], *rows])]
