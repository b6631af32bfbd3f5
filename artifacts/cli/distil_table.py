"""The command `distil-table`: the token table of a bi-encoder."""

import typer

from lightretriever.artifacts.cli.options import RecipeArgument, overridden, replacing
from lightretriever.artifacts.cli.runner import JsonOption, next_command, running
from lightretriever.artifacts.cli.stages import make_tables, next_stage
from lightretriever.artifacts.errors import RecipeError
from lightretriever.artifacts.pipeline.recipe import Recipe

__all__ = ["distil_table"]


@replacing("corpus", "model", "device", "head_queries", "top", "work", "limit", "skip_bad")
def distil_table(context: typer.Context, recipe: RecipeArgument, as_json: JsonOption = False) -> None:
    """Make the token table of a bi-encoder: the general one or, with `distil`, one that is fitted to the corpus."""
    with running("distil-table", as_json=as_json) as job:
        loaded = overridden(context, Recipe)
        if not loaded.biencoder:
            raise RecipeError(
                f"{recipe}: model.path: {loaded.model.path} is no folder of sentence-transformers.",
                remedy="Run `table`, or for a bi-encoder add the section `distil: {}`.",
            )
        job.summary = make_tables(loaded)
        job.summary.next = next_command(context, next_stage(loaded), recipe)
