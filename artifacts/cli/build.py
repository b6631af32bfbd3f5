"""The command `build`: a bundle of a recipe, all stages or some of them, or a general token table.

Torch is imported when a stage needs it: `--from index` works without.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cli.runner import (
    DeviceOption,
    JsonOption,
    LimitOption,
    ModelOption,
    OverwriteOption,
    SkipOption,
    WorkOption,
    overridden,
    report_skipped,
    running,
)
from lightretriever.artifacts.errors import RecipeError, importing
from lightretriever.artifacts.files.atomic import check_target
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.build import build_bundle, check_before_build
from lightretriever.artifacts.pipeline.encoded import encoded_corpus
from lightretriever.artifacts.pipeline.recipe import GeneralTableRecipe, Recipe, recipe_kind
from lightretriever.artifacts.reports import Summary

Stage = Literal["table", "encode", "index"]


def build(
    context: typer.Context,
    recipe: Annotated[Path, Argument(help="The recipe, a YAML file.", show_default=False)],
    corpus: Annotated[
        str | None, Option(help="Corpus file or BEIR folder (corpus.path); folder of the texts of a general table.")
    ] = None,
    model: ModelOption = None,
    adapter: Annotated[str | None, Option(help="PEFT adapter directory (model.adapter).")] = None,
    device: DeviceOption = None,
    head_queries: Annotated[Path | None, Option(help="Log of queries that the model reads (head.queries).")] = None,
    top: Annotated[int | None, Option(help="How many of the log's queries, the most frequent (head.top).")] = None,
    limit: LimitOption = None,
    dimension: Annotated[int | None, Option(help="Serve the first D values (index.dimension).")] = None,
    top_k: Annotated[int | None, Option(help="Sparse terms kept per document (index.top_k).")] = None,
    work: WorkOption = None,
    output: Annotated[Path | None, Option(help="The bundle to write (output).")] = None,
    skip_bad: SkipOption = False,
    first: Annotated[Stage | None, Option("--from", help="Begin with this stage: what comes before is there.")] = None,
    last: Annotated[Stage | None, Option("--until", help="End behind this stage.")] = None,
    ray: Annotated[
        str | None, Option(metavar="ADDRESS", help="Encode on a Ray cluster (auto, [ray://]HOST:PORT), and end.")
    ] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a bundle: token tables, encoded corpus, indexes. Or, of a recipe of the kind general-table, such a table."""
    with running("build", as_json=as_json) as job:
        if recipe_kind(recipe) is GeneralTableRecipe:
            if first or last or ray:
                what = f"{recipe}: kind is general-table, which is made in one stage."
                raise RecipeError(what, remedy="Leave --from, --until and --ray out.")
            job.summary = _general_table(context, overwrite)
            return
        loaded = overridden(context, Recipe)
        stages = _stages(loaded, first, last, ray)
        if "index" in stages:
            check_before_build(loaded, overwrite=overwrite)
        if ray is None:
            with work_lock(loaded.work):
                job.summary = _run(loaded, stages, overwrite)
        else:
            _torch_stages()
            with importing("ray"):
                from lightretriever.artifacts.pipeline.on_ray import encode_on_ray
            job.summary = encode_on_ray(loaded, ray)
        if {"encode", "index"} & {*stages}:
            report_skipped(encoded_corpus(loaded, shared=True).skipped.reasons)
    if "index" in stages and len(stages) > 1:
        _compare_with_bm25(context, loaded)


def _stages(recipe: Recipe, first: Stage | None, last: Stage | None, ray: str | None) -> Sequence[Stage]:
    """The stages to run. Raises RecipeError for none. A table that may be fitted to the encoded corpus comes behind
    it."""
    fitted = recipe.encoder or recipe.distil is not None
    every: list[Stage] = [*(("encode", "table") if fitted else ("table", "encode")), "index"]
    if ray is not None:
        if {first, last} - {None, "encode"}:
            raise RecipeError("--ray encodes, and ends.", remedy="Leave --from and --until out.")
        return ["encode"]
    begin, end = every.index(first or every[0]), every.index(last or every[-1])
    if begin > end:
        what = f"--from is {first} and --until is {last}."
        raise RecipeError(what, remedy=f"The stages of this recipe: {', '.join(every)}.")
    return every[begin : end + 1]


def _run(recipe: Recipe, stages: Sequence[Stage], overwrite: bool) -> Summary:
    """Run stages, and return the summary of the last one."""
    encoded = None
    if {"table", "encode"} & {*stages}:
        if "encode" in stages:
            encoded_corpus(recipe)  # a bad line is found before the models are loaded
        torch_stages = _torch_stages()
        encoders = torch_stages.load_recipe_encoders(recipe)
    for stage in stages:
        summary: Summary
        if stage == "table":
            summary = torch_stages.run_tables(recipe, encoders)
        elif stage == "encode":
            summary = encoded = torch_stages.run_encode(recipe, encoders)
        else:
            summary = build_bundle(recipe, overwrite=overwrite, encoded=encoded)
            if recipe.head is None and any((recipe.table(task) / "head").is_dir() for task in recipe.tasks):
                unused = f"{recipe.work} has head queries, which this recipe leaves out: it has no section head"
                typer.echo(f"{unused} (or --head-queries)", err=True)
    return summary


def _torch_stages() -> Any:
    """Import `artifacts.pipeline.stages`, which needs torch. MissingExtraError where it is not installed."""
    with importing("pipeline"):
        from lightretriever.artifacts.pipeline import stages
    return stages


def _general_table(context: typer.Context, overwrite: bool) -> Summary:
    """Fit a general table to the texts below the folder --corpus."""
    texts = context.params.pop("corpus")
    recipe = overridden(context, GeneralTableRecipe, texts and Path(texts))
    check_target(recipe.output, overwrite=overwrite, marker="table.json")
    with importing("pipeline"):
        from lightretriever.artifacts.pipeline.general import run_general_table
    with work_lock(recipe.work):
        return run_general_table(recipe, overwrite=overwrite)


def _compare_with_bm25(context: typer.Context, recipe: Recipe) -> None:
    """Warn of a leg that finds documents by their own sentences much less well than BM25 does."""
    from lightretriever.artifacts.evaluation.tune import find_known_items

    items = find_known_items(context.obj, Bundle.open(recipe.output), recipe.work)
    if items is None:
        return
    ranks = ", ".join(f"{system} {value:.3f}" for system, value in items.mrr.items())
    typer.echo(f"{items.queries} documents searched for by a sentence of theirs, MRR@10: {ranks}", err=True)
    typer.echo(
        "BM25 is at its best there: a low value shows a leg that may hurt, not which weights are best.", err=True
    )
    fit = "fit the token table to this corpus (`distil: {}` in the recipe), or " if recipe.distil is None else ""
    for leg in items.weak:
        other = {"dense": f"{fit}set index.weights: {{sparse: 1}}", "sparse": "set index.vocabulary: words"}[leg]
        typer.echo(
            f"warning: the {leg} leg is weak for this corpus, and search ranks below BM25, nDCG@10 {items.difference}. "
            f"Choose the weights by judged queries (`lightretriever evaluate --tune`), {other}.",
            err=True,
        )
