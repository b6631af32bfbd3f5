"""`python -m lightretriever.service.client "play music"`: the command `search` with only the client installed."""

import typer

from lightretriever.artifacts.cli.console import run_console
from lightretriever.service.terminal import search

__all__ = ["main"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
app.command()(search)


def main() -> None:
    """Run the command."""
    run_console(app)


if __name__ == "__main__":
    main()
