"""Arguments and options that commands share, and what those of a build replace in its recipe."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lightretriever.artifacts.pipeline.recipe import AnyRecipe, Recipe, read_recipe

__all__ = [
    "BUILT",
    "BundleArgument",
    "DeviceOption",
    "LimitOption",
    "ModelOption",
    "OverwriteOption",
    "RecipeArgument",
    "SkipOption",
    "TaskOption",
    "WorkOption",
    "built",
    "overridden",
    "replacing",
]

BUILT: Final = "The bundle's folder, or the recipe that it was built by."

BundleArgument = Annotated[Path, typer.Argument(help="The bundle's folder.", show_default=False)]
TaskOption = Annotated[str | None, typer.Option(help="The bundle's task (default: the bundle's default task).")]

RecipeArgument = Annotated[Path, typer.Argument(help="The recipe, a YAML file.", show_default=False)]
ModelOption = Annotated[str | None, typer.Option("--model", help="Hugging Face id, directory or .gguf (model.path).")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, … (model.device).")]
WorkOption = Annotated[Path | None, typer.Option("--work", help="Directory of intermediate files (work).")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Only the first N documents (corpus.limit).")]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad corpus lines out instead of stopping.")]
_CorpusOption = Annotated[
    str | None,
    typer.Option("--corpus", help="Corpus file or BEIR folder (corpus.path); folder of the texts of a general table."),
]
_AdapterOption = Annotated[str | None, typer.Option("--adapter", help="PEFT adapter directory (model.adapter).")]
_OutputOption = Annotated[Path | None, typer.Option("--output", help="The bundle to write (output).")]
_DimensionOption = Annotated[
    int | None, typer.Option("--dimension", help="Serve the first D values (index.dimension).")
]
_TopKOption = Annotated[int | None, typer.Option("--top-k", help="Sparse terms kept per document (index.top_k).")]
_HeadOption = Annotated[
    Path | None, typer.Option("--head-queries", help="Log whose most frequent queries the model reads (head.queries).")
]
_TopOption = Annotated[int | None, typer.Option("--top", help="How many of the log's queries (head.top).")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an existing bundle.")]

_OPTIONS: Final[dict[str, tuple[str, Any]]] = {
    "corpus": ("corpus.path", _CorpusOption),
    "model": ("model.path", ModelOption),
    "adapter": ("model.adapter", _AdapterOption),
    "device": ("model.device", DeviceOption),
    "head_queries": ("head.queries", _HeadOption),
    "top": ("head.top", _TopOption),
    "work": ("work", WorkOption),
    "output": ("output", _OutputOption),
    "limit": ("corpus.limit", LimitOption),
    "dimension": ("index.dimension", _DimensionOption),
    "top_k": ("index.top_k", _TopKOption),
    "skip_bad": ("corpus.skip_bad", SkipOption),
}
"""The keys of a recipe that options of these names replace, and the options that `replacing` gives to a command."""

_KEYS: Final = {"teacher": "teacher.path"} | {name: key for name, (key, _) in _OPTIONS.items()}


def built(path: Path) -> Path:
    """The folder of a bundle, or that in which a recipe's bundle is. Raises RecipeError."""
    return read_recipe(path, Recipe).output if path.is_file() else path


def replacing(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a command options of these names, behind its `recipe`. They replace keys of the recipe: the command gets
    it by `overridden`. A name of the command's own parameters says that it stands there in help."""

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
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=_OPTIONS[name][1])


def overridden(context: typer.Context, kind: type[AnyRecipe]) -> AnyRecipe:
    """The recipe of this `kind` that a command was given, with the options that it was called with."""
    given = {_KEYS[name]: value for name, value in context.params.items() if name in _KEYS and value is not False}
    return read_recipe(context.params["recipe"], kind, given)
