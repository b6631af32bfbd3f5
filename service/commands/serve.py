"""The command `serve`: serves bundles over HTTP."""

from pathlib import Path
from typing import Annotated

import typer

from lightretriever.service.collections.collections import parse_folders
from lightretriever.service.serving.server import run
from lightretriever.service.settings import load_settings


def serve(
    bundle: Annotated[
        list[str],
        typer.Argument(help="The bundle's folder, or NAME=FOLDER for each of several collections.", show_default=False),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; of a name, all of them. unix:PATH: a Unix socket.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8080,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes, which share the bundle's files. Default: one for each processor, at most 4, where memory "
            "allows.",
            min=1,
            max=1024,
            show_default="auto",
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file of settings (docs/service.md).")] = None,
    opensearch_url: Annotated[str | None, typer.Option(help="Addresses of a cluster (opensearch_url).")] = None,
    index: Annotated[str | None, typer.Option(help="Alias of the cluster's index (opensearch_index).")] = None,
    live: Annotated[
        Path | None, typer.Option(help="Folder of the journal of documents that are written while it serves (live).")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="Recipe whose model encodes documents written as fields alone (recipe).")
    ] = None,
) -> None:
    """Serve a bundle, or several, over HTTP until SIGTERM or Ctrl-C."""
    arguments = {"opensearch_url": opensearch_url, "opensearch_index": index, "live": live, "recipe": recipe}
    folders, settings = parse_folders(bundle), load_settings(config, arguments)
    raise typer.Exit(run(folders, host=host, port=port, settings=settings, workers=workers))
