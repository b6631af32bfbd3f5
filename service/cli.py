"""The console command `lightretriever`: serve a bundle, and every offline command."""

import sys

import typer

from artifacts.cli import add_commands
from artifacts.errors import LightRetrieverError

__all__ = ["app", "main"]

app = typer.Typer(
    name="lightretriever",
    help="Hybrid search with the quality of a large language model and none of it in the query path.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
add_commands(app)


def main() -> None:
    """Run the command line; an expected error is one line on stderr and exit status 2."""
    try:
        app()
    except LightRetrieverError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
