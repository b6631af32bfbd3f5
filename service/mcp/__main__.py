"""`python -m lightretriever.service.mcp URL`: the command `mcp` with only the list mcp.txt installed."""

import typer

from lightretriever.artifacts.cli.console import run_console
from lightretriever.service.mcp.command import mcp

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(mcp)


def main() -> None:
    """Run the command."""
    run_console(app)


if __name__ == "__main__":
    main()
