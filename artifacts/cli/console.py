"""How a console command ends."""

import sys

import typer
from lightretriever.artifacts.errors import LightRetrieverError

__all__ = ["run_console"]


def run_console(app: typer.Typer) -> None:
    """Run a command line; an expected error is one line on stderr and exit status 2."""
    try:
        app()
    except LightRetrieverError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
