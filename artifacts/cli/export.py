"""The command `export`: a bundle's query vectors for another vector store; torch is loaded when it runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cli.options import BundleArgument
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.errors import importing
from lightretriever.artifacts.summary import Summary, folder_size, megabytes

Format = Literal["sentence-transformers"]


def export(
    bundle: BundleArgument,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write.", show_default=False)],
    to: Annotated[Format, typer.Option("--to", help="The library that reads the folder.", show_default=False)],
    model: Annotated[
        str | None,
        typer.Option(
            "--model", help="Encoder of the documents, Hugging Face id or directory. [default: queries alone]"
        ),
    ] = None,
    task: Annotated[str | None, typer.Option("--task", help="Task of the queries. [default: the bundle's]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the query encoder as a model of sentence-transformers, for another vector store."""
    with running("export", as_json=as_json) as job:
        with importing("pipeline"):
            from lightretriever.artifacts.pipeline.export import export_sentence_transformer
        opened = Bundle.open(bundle, indexes=False)
        named = task or opened.manifest.default_task
        warnings = export_sentence_transformer(opened, directory, task=named, model=model, overwrite=overwrite)
        head, dimension, size = opened.manifest.tasks[named].head, opened.manifest.dimension, folder_size(directory)[1]
        what = "queries alone" if model is None else f"queries, and documents by {model}"
        lines = [f"{directory}: {what}, task {named}, {dimension} values, {megabytes(size)}"]
        if head is not None:
            lines += [f"  without the bundle's {head.queries:,} head queries: they get the mean of their tokens' rows"]
        facts = {"task": named, "dimension": dimension, "encoder": model, "warnings": warnings, "bytes": size}
        facts["head_queries"] = 0 if head is None else head.queries
        job.summary = Summary(str(directory), [*lines, *(f"warning: {warning}" for warning in warnings)], facts)
