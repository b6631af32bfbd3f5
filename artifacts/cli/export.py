"""The command `export`: a bundle's query vectors for another vector store; torch is loaded when it runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import typer

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.cli.options import BundleArgument
from lightretriever.artifacts.cli.runner import JsonOption, running
from lightretriever.artifacts.errors import importing
from lightretriever.artifacts.summary import Summary, Text, folder_size, megabytes

__all__ = ["ExportSummary", "export"]

Format = Literal["sentence-transformers"]


class ExportSummary(Summary):
    """Of `export`: `path` is a model that encodes queries of the `task` to `dimension` values, and documents by the
    `encoder`, null where it encodes queries alone. It leaves `head_queries` out, which the service has vectors of the
    whole model for."""

    command: Literal["export"] = "export"
    task: str
    dimension: int
    encoder: Text | None
    head_queries: int
    warnings: list[Text]
    bytes: int

    def made(self) -> Iterator[str]:
        """One line, and one each for head queries and warnings."""
        what = "queries alone" if self.encoder is None else f"queries, and documents by {self.encoder}"
        yield f"{self.path}: {what}, task {self.task}, {self.dimension} values, {megabytes(self.bytes)}"
        if self.head_queries:
            yield f"  without the bundle's {self.head_queries:,} head queries: they get the mean of their tokens' rows"
        for warning in self.warnings:
            yield f"warning: {warning}"


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
        head = opened.manifest.tasks[named].head
        job.summary = ExportSummary(
            path=str(directory),
            task=named,
            dimension=opened.manifest.dimension,
            encoder=model,
            head_queries=0 if head is None else head.queries,
            warnings=warnings,
            bytes=folder_size(directory)[1],
        )
