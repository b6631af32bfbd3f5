"""The command `distil-table`: makes the token table of a bi-encoder."""

import typer
from lightretriever.artifacts.cli.options import (
    CorpusOption,
    DeviceOption,
    HeadOption,
    LimitOption,
    ModelOption,
    RecipeArgument,
    SkipOption,
    TopOption,
    WorkOption,
    recipe_of,
)
from lightretriever.artifacts.cli.runner import JsonOption, next_command, running
from lightretriever.artifacts.cli.stages import make_tables
from lightretriever.artifacts.cli.summaries import next_stage, tables_summary
from lightretriever.artifacts.errors import RecipeError

__all__ = ["distil_table"]


def distil_table(
    context: typer.Context,
    recipe: RecipeArgument,
    corpus: CorpusOption = None,
    model: ModelOption = None,
    device: DeviceOption = None,
    head_queries: HeadOption = None,
    top: TopOption = None,
    work: WorkOption = None,
    limit: LimitOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make the token table of a bi-encoder: the general one or, with `distil`, one that is fitted to the corpus."""
    with running("distil-table", as_json=as_json) as job:
        loaded = recipe_of(context)
        if not loaded.biencoder:
            raise RecipeError(
                f"{recipe}: model.path: {loaded.model.path} is no folder of sentence-transformers.",
                remedy="Run `table`, or for a bi-encoder add the section `distil: {}`.",
            )
        job.summary = tables_summary("distil-table", loaded, make_tables(loaded))
        job.summary.next = next_command(context, next_stage(loaded), recipe)
