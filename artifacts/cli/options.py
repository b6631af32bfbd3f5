"""Arguments and options that commands share, and what those of a build replace in its recipe."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from lightretriever.artifacts.pipeline.recipe import AnyRecipe, read_recipe

__all__ = [
    "BundleArgument",
    "DeviceOption",
    "LimitOption",
    "ModelOption",
    "OverwriteOption",
    "RecipeArgument",
    "SkipOption",
    "TaskOption",
    "WorkOption",
    "overridden",
    "replacing",
]

BundleArgument = Annotated[Path, typer.Argument(help="The bundle's folder.", show_default=False)]
TaskOption = Annotated[str | None, typer.Option(help="The bundle's task (default: the bundle's default task).")]

RecipeArgument = Annotated[Path, typer.Argument(help="The recipe, a YAML file.", show_default=False)]
ModelOption = Annotated[str | None, typer.Option("--model", help="Hugging Face id, directory or .gguf (model.path).")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, … (model.device).")]
WorkOption = Annotated[Path | None, typer.Option("--work", help="Directory of intermediate files (work).")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Only the first N documents (corpus.limit).")]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad corpus lines out instead of stopping.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an existing bundle.")]

_OPTIONS: Final[dict[str, Any]] = {
    "corpus": Annotated[str | None, typer.Option("--corpus", help="Corpus file or BEIR folder (corpus.path).")],
    "model": ModelOption,
    "adapter": Annotated[str | None, typer.Option("--adapter", help="PEFT adapter directory (model.adapter).")],
    "device": DeviceOption,
    "head_queries": Annotated[
        Path | None,
        typer.Option("--head-queries", help="Log whose most frequent queries the model reads (head.queries)."),
    ],
    "top": Annotated[int | None, typer.Option("--top", help="How many of the log's queries (head.top).")],
    "work": WorkOption,
    "output": Annotated[Path | None, typer.Option("--output", help="The bundle to write (output).")],
    "limit": LimitOption,
    "dimension": Annotated[int | None, typer.Option("--dimension", help="Serve the first D values (index.dimension).")],
    "top_k": Annotated[int | None, typer.Option("--top-k", help="Sparse terms kept per document (index.top_k).")],
    "skip_bad": SkipOption,
}
"""The options that `replacing` gives to a command."""

_KEYS: Final = {
    "corpus": "corpus.path",
    "limit": "corpus.limit",
    "skip_bad": "corpus.skip_bad",
    "model": "model.path",
    "teacher": "teacher.path",
    "adapter": "model.adapter",
    "device": "model.device",
    "head_queries": "head.queries",
    "top": "head.top",
    "dimension": "index.dimension",
    "top_k": "index.top_k",
    "work": "work",
    "output": "output",
}
"""The keys of a recipe that the options of a command replace."""


def replacing(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of these names, behind its `recipe`. They replace keys of the recipe: the command gets it
    by `overridden`. A name of the command's own parameters says that it stands there in help."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(signature(command).parameters)

        @wraps(command)
        def called(**given: Any) -> None:
            command(**{name: value for name, value in given.items() if name in own})

        first = {name: own[name] for name in ("context", "recipe")}
        named = {name: own.get(name) or _option(name) for name in names}
        called.__signature__ = Signature([*(first | named | own).values()])  # type: ignore[attr-defined]
        return called

    return decorated


def _option(name: str) -> Parameter:
    default = False if name == "skip_bad" else None
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=_OPTIONS[name])


def overridden(context: typer.Context, kind: type[AnyRecipe]) -> AnyRecipe:
    """The recipe of this `kind` that a command was given, with the options that it was called with."""
    given = {_KEYS[name]: value for name, value in context.params.items() if name in _KEYS and value is not False}
    return read_recipe(context.params["recipe"], kind, given)
