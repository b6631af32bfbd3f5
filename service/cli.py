"""The console command `lightretriever`: serve a bundle, search a running service, and every offline command."""

import sys
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from lightretriever.artifacts.cli.console import run_console
from lightretriever.service.errors import SettingsError
from lightretriever.service.http.api_keys import new_key
from lightretriever.service.mcp.command import mcp
from lightretriever.service.terminal import search
from pydantic import ValidationError

if TYPE_CHECKING:
    from lightretriever.artifacts.bundle.reader import Bundle
    from lightretriever.artifacts.evaluation.searching import Searcher

__all__ = ["app", "main"]


def _open_searcher(bundle: "Bundle") -> AbstractContextManager["Searcher"]:
    """Open the serving engine for the commands that evaluate and train, which import nothing from the service."""
    from lightretriever.service.search.evaluation import open_searcher

    return open_searcher(bundle)


_SEARCH: Final = "Search"
_AUTO: Final = "auto"
_MOST_WORKERS: Final = 1024

app = typer.Typer(
    name="lightretriever",
    help="Hybrid search with the ranking of a neural model and no model in the query path.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"obj": _open_searcher},
)


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(metadata.version("lightretriever-search"))
        raise typer.Exit


@app.callback(no_args_is_help=True)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Hybrid search with the ranking of a neural model and no model in the query path."""


@app.command(rich_help_panel=_SEARCH)
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
    backend: Annotated[Literal["local", "opensearch"] | None, typer.Option(help="Where to search (backend).")] = None,
    opensearch_url: Annotated[str | None, typer.Option(help="Addresses of the cluster (opensearch_url).")] = None,
    index: Annotated[str | None, typer.Option(help="Alias of the cluster's index (opensearch_index).")] = None,
    live: Annotated[
        Path | None, typer.Option(help="Folder of the journal of documents that are written while it serves (live).")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="Recipe whose model encodes documents written as fields alone (recipe).")
    ] = None,
) -> None:
    """Serve a bundle, or several, over HTTP until SIGTERM or Ctrl-C."""
    from lightretriever.service.collections.collections import parse_folders
    from lightretriever.service.serving.command import run
    from lightretriever.service.settings import load_settings

    given = {"backend": backend, "opensearch_url": opensearch_url, "opensearch_index": index, "live": live} | {
        "recipe": recipe
    }
    folders, settings = parse_folders(bundle), load_settings(config, given)
    raise typer.Exit(run(folders, host=host, port=port, settings=settings, workers=_read_workers(workers)))


@app.command(rich_help_panel=_SEARCH)
def demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8080,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where to unpack the bundle. [default: lightretriever/demo in the user's cache]"),
    ] = None,
    unpack: Annotated[bool, typer.Option("--unpack", help="Unpack the bundle, print its folder, and end.")] = False,
) -> None:
    """Serve the demo bundle, Debian's programs by what they do, until SIGTERM or Ctrl-C."""
    from lightretriever.service.serving.demo import serve_demo, unpack_demo

    target = unpack_demo(folder)
    if unpack:
        typer.echo(target)
        return
    raise typer.Exit(serve_demo(target, host, port))


app.command(rich_help_panel=_SEARCH)(search)
app.command(rich_help_panel=_SEARCH)(mcp)
if sys.argv[1:2] not in (
    ["serve"],
    ["demo"],
):  # each of its processes would load the other commands and keep them in memory
    from lightretriever.artifacts.cli.app import add_commands

    add_commands(app)


@app.command(rich_help_panel="Operate")
def key(
    name: Annotated[str, typer.Argument(help="Name of the key's user.", show_default=False)],
    scope: Annotated[list[str], typer.Option(help="What the key permits: search or admin; may be given twice.")],
    collection: Annotated[
        list[str] | None, typer.Option(help="Collection that it is for; may be given several times. None: all.")
    ] = None,
) -> None:
    """Make an API key: print the key on stderr, and its entry for the file of keys (api_keys_file) on stdout."""
    try:
        made, entry = new_key(name, scope, collection or [])
    except ValidationError as error:
        raise SettingsError(
            f"There is no key of the name {name!r} with the scopes {', '.join(scope)}.",
            remedy="A name has 1 to 64 letters, digits, dots, dashes or underscores; a scope is search or admin; a "
            "collection is named alike.",
        ) from error
    typer.echo(f"The key, shown only now: {made}", err=True)
    typer.echo(f"- name: {entry.name}\n  sha256: {entry.sha256}\n  scopes: [{', '.join(entry.scopes)}]")
    if entry.collections is not None:
        typer.echo(f"  collections: [{', '.join(entry.collections)}]")


def _read_workers(given: str) -> int | None:
    if given == _AUTO:
        return None
    if not given.isdecimal() or not 1 <= int(given) <= _MOST_WORKERS:
        raise SettingsError(f"--workers is {given!r}.", remedy=f"Give a number of 1 to {_MOST_WORKERS}, or {_AUTO}.")
    return int(given)


def main() -> None:
    """Run the command line."""
    run_console(app)


if __name__ == "__main__":
    main()
