"""The command `index`: builds the indexes and writes the bundle."""

import typer
from lightretriever.artifacts.cli.options import (
    CorpusOption,
    DimensionOption,
    HeadOption,
    LimitOption,
    OutputOption,
    OverwriteOption,
    RecipeArgument,
    SkipOption,
    TopKOption,
    TopOption,
    WorkOption,
    recipe_of,
)
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.cli.stages import write_bundle
from lightretriever.artifacts.files.workdir import work_lock

__all__ = ["index"]


def index(
    context: typer.Context,
    recipe: RecipeArgument,
    corpus: CorpusOption = None,
    head_queries: HeadOption = None,
    top: TopOption = None,
    work: WorkOption = None,
    output: OutputOption = None,
    limit: LimitOption = None,
    dimension: DimensionOption = None,
    top_k: TopKOption = None,
    skip_bad: SkipOption = False,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build the Faiss and Lucene indexes from the encoded shards and write the bundle. Needs no torch."""
    with running("index", as_json=as_json) as job:
        loaded = recipe_of(context)
        with work_lock(loaded.work):
            job.summary = write_bundle(context, "index", loaded, overwrite)
