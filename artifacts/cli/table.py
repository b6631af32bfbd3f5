"""The command `table`: makes the token table of every task."""

import typer
from lightretriever.artifacts.cli.options import (
    AdapterOption,
    DeviceOption,
    HeadOption,
    ModelOption,
    RecipeArgument,
    TopOption,
    WorkOption,
    recipe_of,
)
from lightretriever.artifacts.cli.runner import JsonOption, next_command, running
from lightretriever.artifacts.cli.stages import make_tables
from lightretriever.artifacts.cli.summaries import next_stage, tables_summary

__all__ = ["table"]


def table(
    context: typer.Context,
    recipe: RecipeArgument,
    model: ModelOption = None,
    adapter: AdapterOption = None,
    device: DeviceOption = None,
    head_queries: HeadOption = None,
    top: TopOption = None,
    work: WorkOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the token table of every task: one row per token of the vocabulary."""
    with running("table", as_json=as_json) as job:
        loaded = recipe_of(context)
        tables = make_tables(loaded)
        job.summary = tables_summary("table", loaded, tables)
        job.summary.next = next_command(context, next_stage(loaded), recipe)
