"""The command `serve`: serves bundles over HTTP."""

from pathlib import Path
from typing import Annotated, Final

import typer

from lightretriever.service.collections.collections import parse_folders
from lightretriever.service.errors import SettingsError
from lightretriever.service.serving.server import run
from lightretriever.service.settings import load_settings

_AUTO: Final = "auto"
_MAX_WORKERS: Final = 1024


def serve(
    bundle: Annotated[
        list[str],
        typer.Argument(help="The bundle's folder, or NAME=FOLDER for each of several collections.", show_default=False),
    ],
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; of a name, all of them. unix:PATH: a Unix socket. fd:N: one that is open "
            "already, as by systemd."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8080,
    workers: Annotated[
        str,
        typer.Option(
            help="Processes, 1 to 1024, which share the bundle's files. auto: one for each processor, at most 4, where "
            "memory allows."
        ),
    ] = _AUTO,
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
    raise typer.Exit(run(folders, host=host, port=port, settings=settings, workers=_read_workers(workers)))


def _read_workers(workers: str) -> int | None:
    if workers == _AUTO:
        return None
    if not workers.isdecimal() or not 1 <= int(workers) <= _MAX_WORKERS:
        raise SettingsError(f"--workers is {workers!r}.", remedy=f"Give a number of 1 to {_MAX_WORKERS}, or {_AUTO}.")
    return int(workers)
