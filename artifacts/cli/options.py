"""Arguments and options that commands share, and what those of a build replace in its recipe."""

from pathlib import Path
from typing import Annotated, Final

import typer

from lightretriever.artifacts.pipeline.recipe import AnyRecipe, Recipe, read_recipe

BUILT: Final = "The bundle's folder, or the recipe that it was built by."

BundleArgument = Annotated[Path, typer.Argument(help="The bundle's folder.", show_default=False)]
TaskOption = Annotated[str | None, typer.Option(help="The bundle's task (default: the bundle's default task).")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Hugging Face id, directory or .gguf (model.path).")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, … (model.device).")]
WorkOption = Annotated[Path | None, typer.Option("--work", help="Directory of intermediate files (work).")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Only the first N documents (corpus.limit).")]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad corpus lines out instead of stopping.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an existing bundle.")]

_KEYS: Final = {
    "corpus": "corpus.path",
    "model": "model.path",
    "adapter": "model.adapter",
    "device": "model.device",
    "head_queries": "head.queries",
    "top": "head.top",
    "work": "work",
    "output": "output",
    "limit": "corpus.limit",
    "dimension": "index.dimension",
    "top_k": "index.top_k",
    "skip_bad": "corpus.skip_bad",
}
"""The keys of a recipe that options of these names replace."""


def built(path: Path) -> Path:
    """The folder of a bundle, or that in which a recipe's bundle is. Raises RecipeError."""
    return read_recipe(path, Recipe).output if path.is_file() else path


def overridden(context: typer.Context, kind: type[AnyRecipe], data: Path | None = None) -> AnyRecipe:
    """The recipe of this `kind` that a command was given, with the options that it was called with; paths of training
    data are below the folder `data`."""
    options = {_KEYS[name]: value for name, value in context.params.items() if name in _KEYS and value is not False}
    return read_recipe(context.params["recipe"], kind, options, data)
