"""The command `table`: the token tables of a language model."""

import typer

from lightretriever.artifacts.cli.options import RecipeArgument, overridden, replacing
from lightretriever.artifacts.cli.runner import JsonOption, next_command, running
from lightretriever.artifacts.cli.stages import make_tables, next_stage
from lightretriever.artifacts.pipeline.recipe import Recipe

__all__ = ["table"]


@replacing("model", "adapter", "device", "head_queries", "top", "work")
def table(context: typer.Context, recipe: RecipeArgument, as_json: JsonOption = False) -> None:
    """Make the token table of every task: one row per token of the vocabulary."""
    with running("table", as_json=as_json) as job:
        loaded = overridden(context, Recipe)
        job.summary = make_tables(loaded)
        job.summary.next = next_command(context, next_stage(loaded), recipe)
