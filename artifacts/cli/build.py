"""The command `build`: all stages in one go."""

from collections.abc import Sequence

import typer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cli.options import OverwriteOption, RecipeArgument, overridden, replacing
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.cli.stages import torch_stages, write_recipe_bundle
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.build import check_before_build
from lightretriever.artifacts.pipeline.encoded import encoded_corpus
from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.pipeline.terms import rank_by_bm25
from lightretriever.artifacts.signals import until_stopped

__all__ = ["build"]


@replacing("corpus", "model", "adapter", "device", "head_queries", "top", "work", "output", "limit", "skip_bad")
def build(
    context: typer.Context, recipe: RecipeArgument, overwrite: OverwriteOption = False, as_json: JsonOption = False
) -> None:
    """All of it in one go: token tables, corpus encoding, indexes, bundle."""
    with running("build", as_json=as_json) as job:
        loaded = overridden(context, Recipe)
        stages = torch_stages()
        check_before_build(loaded, overwrite=overwrite)
        with work_lock(loaded.work):
            documents = len(encoded_corpus(loaded))  # a bad line is found before the models are loaded
            encoders = stages.load_recipe_encoders(loaded, documents)
            if not loaded.biencoder:
                stages.run_tables(loaded, encoders)
            encoded = stages.run_encode(loaded, encoders)
            if loaded.biencoder:  # whose tables may be fitted to the encoded corpus
                stages.run_tables(loaded, encoders, encoded=True)
            if loaded.refine is not None:
                for line in stages.run_refine(loaded).made():
                    typer.echo(line, err=True)
            job.summary = write_recipe_bundle(context, loaded, overwrite)
            job.summary.reused, job.summary.encoded = encoded.reused, encoded.encoded
            job.summary.removed, job.summary.doubtful = encoded.removed, encoded.doubtful
            with until_stopped():
                _compare_with_bm25(context, loaded)


def _compare_with_bm25(context: typer.Context, recipe: Recipe) -> None:
    """Warn of a leg that finds documents by their own sentences much less well than BM25 does."""
    from lightretriever.artifacts.evaluation.tune import find_known_items

    bundle, corpus, index = Bundle.open(recipe.output), encoded_corpus(recipe), recipe.index
    vocabulary = bundle.vocabulary(bundle.tokenizer())

    def bm25(queries: Sequence[str], k: int) -> list[list[tuple[str, float]]]:
        return rank_by_bm25(corpus, vocabulary, queries, k, k1=index.k1, b=index.b)

    found = find_known_items(context.obj, bundle, bm25)
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
