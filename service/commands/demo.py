"""The command `demo`: serves the bundle that comes with the installation."""

from pathlib import Path
from typing import Annotated

import typer

from lightretriever.service.serving.demo import serve_demo, unpack_demo

__all__ = ["demo"]


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
    target = unpack_demo(folder)
    if unpack:
        typer.echo(target)
        return
    raise typer.Exit(serve_demo(target, host, port))
