"""`python -m lightretriever.service.mcp URL`: the command `mcp` with only the list mcp.txt installed."""

import sys

import typer
from lightretriever.artifacts.errors import LightRetrieverError
from lightretriever.service.mcp.command import mcp

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(mcp)


def main() -> None:
    """Run the command; an expected error is one line on stderr and exit status 2."""
    try:
        app()
    except LightRetrieverError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
