"""The command `refine`: fits the token tables to the encoded corpus."""

import typer
from lightretriever.artifacts.cli.options import (
    CorpusOption,
    DimensionOption,
    LimitOption,
    RecipeArgument,
    SkipOption,
    WorkOption,
    recipe_of,
)
from lightretriever.artifacts.cli.runner import JsonOption, next_command, running
from lightretriever.artifacts.cli.stages import torch_stages
from lightretriever.artifacts.cli.summaries import next_stage, tables_summary
from lightretriever.artifacts.files.workdir import work_lock

__all__ = ["refine"]


def refine(
    context: typer.Context,
    recipe: RecipeArgument,
    corpus: CorpusOption = None,
    work: WorkOption = None,
    limit: LimitOption = None,
    dimension: DimensionOption = None,
    skip_bad: SkipOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train the token tables on the encoded corpus, without the model (a recipe with `refine`)."""
    with running("refine", as_json=as_json) as job:
        loaded = recipe_of(context)
        stages = torch_stages()
        with work_lock(loaded.work):
            tables = stages.run_refine(loaded)
        job.summary = tables_summary("refine", loaded, tables)
        job.summary.next = next_command(context, next_stage(loaded), recipe)
