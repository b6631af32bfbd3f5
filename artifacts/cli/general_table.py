"""The command `lightretriever general-table`; torch is loaded when it runs."""

from pathlib import Path
from typing import Annotated

import typer

from lightretriever.artifacts.cli.options import DeviceOption, RecipeArgument, WorkOption, overridden
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.errors import importing
from lightretriever.artifacts.files.atomic_dir import check_target
from lightretriever.artifacts.files.workdir import work_lock
from lightretriever.artifacts.pipeline.recipe import GeneralTableRecipe

__all__ = ["general_table"]


def general_table(
    context: typer.Context,
    recipe: RecipeArgument,
    model: Annotated[str | None, typer.Option(help="Hugging Face id or directory (model.path).")] = None,
    data: Annotated[Path | None, typer.Option(help="Folder that the recipe's relative paths of texts are in.")] = None,
    device: DeviceOption = None,
    work: WorkOption = None,
    output: Annotated[Path | None, typer.Option(help="The table's folder (output).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing table.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Fit a bi-encoder's token table to texts of all kinds, so that a corpus needs only its documents encoded."""
    with running("general-table", as_json=as_json) as job:
        loaded = overridden(context, GeneralTableRecipe).below(data or Path())
        check_target(loaded.output, overwrite=overwrite, marker="table.json")
        with importing("pipeline"):
            from lightretriever.artifacts.pipeline.general import run_general_table
        with work_lock(loaded.work):
            job.summary = run_general_table(loaded, overwrite=overwrite)
