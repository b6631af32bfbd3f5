"""The command `refine`: token tables fitted to the encoded corpus."""

import typer

from lightretriever.artifacts.cli.options import RecipeArgument, overridden, replacing
from lightretriever.artifacts.cli.runner import JsonOption, next_command, running
from lightretriever.artifacts.cli.stages import next_stage, torch_stages
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.recipe import Recipe

__all__ = ["refine"]


@replacing("corpus", "work", "limit", "dimension", "skip_bad")
def refine(context: typer.Context, recipe: RecipeArgument, as_json: JsonOption = False) -> None:
    """Train the token tables on the encoded corpus, without the model (a recipe with `refine`)."""
    with running("refine", as_json=as_json) as job:
        loaded = overridden(context, Recipe)
        stages = torch_stages()
        with work_lock(loaded.work):
            job.summary = stages.run_refine(loaded)
        job.summary.next = next_command(context, next_stage(loaded), recipe)
