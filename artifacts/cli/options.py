"""Arguments and options that commands share, and what those of a build replace in its recipe."""

from pathlib import Path
from typing import Annotated

import typer
from lightretriever.artifacts.pipeline.recipe import AnyRecipe, read_recipe

__all__ = [
    "AdapterOption",
    "BundleArgument",
    "CorpusOption",
    "DeviceOption",
    "DimensionOption",
    "HeadOption",
    "LimitOption",
    "ModelOption",
    "OutputOption",
    "OverwriteOption",
    "PartOption",
    "RayOption",
    "RecipeArgument",
    "SkipOption",
    "TaskOption",
    "TopKOption",
    "TopOption",
    "WorkOption",
    "overridden",
]

BundleArgument = Annotated[Path, typer.Argument(help="The bundle's folder.", show_default=False)]
TaskOption = Annotated[str | None, typer.Option(help="The bundle's task (default: the bundle's default task).")]

RecipeArgument = Annotated[Path, typer.Argument(help="The recipe, a YAML file.", show_default=False)]
CorpusOption = Annotated[str | None, typer.Option("--corpus", help="Corpus file or BEIR folder (corpus.path).")]
ModelOption = Annotated[str | None, typer.Option("--model", help="Hugging Face id, directory or .gguf (model.path).")]
AdapterOption = Annotated[str | None, typer.Option("--adapter", help="PEFT adapter directory (model.adapter).")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, … (model.device).")]
WorkOption = Annotated[Path | None, typer.Option("--work", help="Directory of intermediate files (work).")]
OutputOption = Annotated[Path | None, typer.Option("--output", help="The bundle to write (output).")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="Only the first N documents (corpus.limit).")]
SkipOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad corpus lines out instead of stopping.")]
DimensionOption = Annotated[int | None, typer.Option("--dimension", help="Serve the first D values (index.dimension).")]
TopKOption = Annotated[int | None, typer.Option("--top-k", help="Sparse terms kept per document (index.top_k).")]
HeadOption = Annotated[
    Path | None, typer.Option("--head-queries", help="Log whose most frequent queries the model reads (head.queries).")
]
TopOption = Annotated[int | None, typer.Option("--top", help="How many of the log's queries (head.top).")]
PartOption = Annotated[
    str | None, typer.Option("--part", metavar="I/N", help="Only every N-th shard from the I-th on, for N machines.")
]
RayOption = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="Encode on a Ray cluster: auto, HOST:PORT or ray://HOST:PORT."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace an existing bundle.")]

_KEYS = {
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


def overridden(context: typer.Context, kind: type[AnyRecipe]) -> AnyRecipe:
    """The recipe of this `kind` that a command was given, with the options that it was called with."""
    given = {_KEYS[name]: value for name, value in context.params.items() if name in _KEYS and value is not False}
    return read_recipe(context.params["recipe"], kind, given)
