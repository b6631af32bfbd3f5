"""The command `index`: the indexes and the bundle."""

import typer

from lightretriever.artifacts.cli.options import OverwriteOption, RecipeArgument, overridden, replacing
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.cli.stages import write_recipe_bundle
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.recipe import Recipe

__all__ = ["index"]


@replacing("corpus", "head_queries", "top", "work", "output", "limit", "dimension", "top_k", "skip_bad")
def index(
    context: typer.Context, recipe: RecipeArgument, overwrite: OverwriteOption = False, as_json: JsonOption = False
) -> None:
    """Build the Faiss and Lucene indexes from the encoded corpus and write the bundle. Needs no torch."""
    with running("index", as_json=as_json) as job:
        loaded = overridden(context, Recipe)
        with work_lock(loaded.work):
            job.summary = write_recipe_bundle(context, loaded, overwrite)
