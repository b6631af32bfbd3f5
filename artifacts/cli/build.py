"""The command `build`: runs every stage of a recipe."""

from collections.abc import Sequence

import typer
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cli.options import (
    AdapterOption,
    CorpusOption,
    DeviceOption,
    HeadOption,
    LimitOption,
    ModelOption,
    OutputOption,
    OverwriteOption,
    RecipeArgument,
    SkipOption,
    TopOption,
    WorkOption,
    recipe_of,
)
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.cli.stages import torch_stages, write_bundle
from lightretriever.artifacts.cli.summaries import tables_summary
from lightretriever.artifacts.evaluation.tune import find_known_items
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.build import check_before_build
from lightretriever.artifacts.pipeline.encoded import encoded_corpus
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.terms import rank_by_bm25

__all__ = ["build"]


def build(
    context: typer.Context,
    recipe: RecipeArgument,
    corpus: CorpusOption = None,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    device: DeviceOption = None,
    head_queries: HeadOption = None,
    top: TopOption = None,
    work: WorkOption = None,
    output: OutputOption = None,
    limit: LimitOption = None,
    skip_bad: SkipOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """All of it in one go: token tables, corpus encoding, indexes, bundle."""
    with running("build", as_json=as_json) as job:
        loaded = recipe_of(context)
        stages = torch_stages()
        check_before_build(loaded, overwrite=overwrite)
        with work_lock(loaded.work):
            encoded_corpus(loaded)  # so that a bad line is found before the models are loaded
            encoders = stages.load_recipe_encoders(loaded)
            if not loaded.biencoder:
                stages.run_tables(loaded, encoders)
            encoding = stages.run_encode(loaded, encoders)
            if loaded.biencoder:  # whose tables may be fitted to the encoded corpus
                stages.run_tables(loaded, encoders, encoding)
            if loaded.refine is not None:
                for line in tables_summary("refine", loaded, stages.run_refine(loaded)).made():
                    typer.echo(line, err=True)
            bundle = write_bundle(context, "build", loaded, overwrite)
            job.summary = bundle.model_copy(update={**encoding.counts._asdict(), "doubtful": encoding.doubtful})
            _compare_with_bm25(context, loaded)


def _compare_with_bm25(context: typer.Context, recipe: Recipe) -> None:
    """Warn of a leg that finds documents by their own sentences much less well than BM25 does."""
    bundle, corpus, index = Bundle.open(recipe.output), encoded_corpus(recipe), recipe.index
    vocabulary = bundle.vocabulary(bundle.tokenizer())

    def bm25(queries: Sequence[str], k: int) -> list[list[tuple[str, float]]]:
        return rank_by_bm25(corpus, vocabulary, queries, k, k1=index.k1, b=index.b)

    found = find_known_items(context.obj, bundle, bm25, recipe.work)
    if found is None:
        return
    ranks = ", ".join(f"{system} {value:.3f}" for system, value in found.mrr.items())
    typer.echo(f"{found.queries} documents searched for by a sentence of theirs, MRR@10: {ranks}", err=True)
    typer.echo(
        "BM25 is at its best there: a low value shows a leg that may hurt, not which weights are best.", err=True
    )
    fit = "fit the token table to this corpus (`distil: {}` in the recipe), or " if recipe.distil is None else ""
    for leg in found.weak:
        other = {"dense": f"{fit}set index.weights: {{sparse: 1}}", "sparse": "set index.vocabulary: words"}[leg]
        typer.echo(
            f"warning: the {leg} leg is weak for this corpus, and search ranks below BM25, nDCG@10 {found.difference}. "
            f"Choose the weights by judged queries (`lightretriever tune`), {other}.",
            err=True,
        )
