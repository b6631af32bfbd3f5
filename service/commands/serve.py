"""The commands `serve` and `demo`: serve bundles over HTTP, those of folders or the one that comes with the program."""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from lightretriever.artifacts.bundle.reader import unpack as unpack_archive
from lightretriever.artifacts.errors import BundleError, DiskError
from lightretriever.service.collections.collections import DEFAULT, parse_folders
from lightretriever.service.serving.server import run
from lightretriever.service.settings import ENV_PREFIX, load_settings

ARCHIVE: Final = Path(__file__).resolve().parents[2] / "demo" / "bundle.tar.xz"
"""The demo bundle: `demo/bundle.tar.xz` of the checkout, or of the installed demo wheel."""

EXAMPLE: Final = '{"query":"merge several pdf files into one","k":5}'
_ADVICE: Final = """
  Serving the demo bundle on {address}/  (API: {address}/openapi.json; Ctrl-C stops it)

  curl -s {address}/search -H 'content-type: application/json' -d '{body}'
"""


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


def demo(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)] = 8080,
    folder: Annotated[
        Path | None, typer.Option(help="Where to unpack the bundle. [default: lightretriever/demo in the user's cache]")
    ] = None,
    unpack: Annotated[bool, typer.Option("--unpack", help="Unpack the bundle, print its folder, and end.")] = False,
) -> None:
    """Serve the demo bundle, Debian's programs by what they do, until SIGTERM or Ctrl-C."""
    target = unpack_demo(folder)
    if unpack:
        typer.echo(target)
        return
    quiet = {} if f"{ENV_PREFIX}LOG_LEVEL" in os.environ else {"log_level": "warning"}
    settings = load_settings(arguments=quiet)
    if port:
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(_ADVICE.format(address=address, body=EXAMPLE), file=sys.stderr, flush=True)
    raise typer.Exit(run({DEFAULT: target}, host=host, port=port, settings=settings))


def unpack_demo(folder: Path | None) -> Path:
    """Unpack the demo bundle to a folder, unless it is there; None: `lightretriever/demo` of the user's cache. Return
    the folder. DiskError; BundleError for a damaged archive, and where the demo wheel is not installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = folder or cache / "lightretriever" / "demo"
    try:
        unpack_archive(ARCHIVE, target)
    except FileNotFoundError as error:
        raise BundleError(
            f"The demo bundle is not installed: there is no {ARCHIVE}.",
            remedy="Install the demo wheel of the same version, lightretriever_search_demo-….whl.",
        ) from error
    except OSError as error:
        raise DiskError(f"The demo bundle can't be unpacked to {target}: {error.strerror or error}.") from error
    return target
