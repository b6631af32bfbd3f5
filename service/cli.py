"""The console command `lightretriever`: every command by name. The module of a command is imported when it runs, so
that help is quick and a service holds no other command in memory."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from lightretriever.artifacts.cli.console import run_console

if TYPE_CHECKING:
    from lightretriever.artifacts.bundle.reader import Bundle
    from lightretriever.artifacts.evaluation.searching import Searcher

_ONLINE: Final = "lightretriever.service.commands"
_OFFLINE: Final = "lightretriever.artifacts.cli"


@dataclass(frozen=True)
class Command:
    """A command: the group that help lists it in, the module of its function, and what help says of it."""

    panel: str
    module: str
    help: str

    def load(self, name: str) -> Any:
        """Import the command's function, whose name is the command's, and read its parameters."""
        alone = typer.Typer(add_completion=False)
        alone.command(name)(getattr(import_module(self.module), name))
        return get_command(alone)


COMMANDS: Final[Mapping[str, Command]] = {
    "serve": Command("Search", f"{_ONLINE}.serve", "Serve bundles over HTTP."),
    "demo": Command("Search", f"{_ONLINE}.serve", "Serve the demo bundle: Debian's programs by what they do."),
    "search": Command("Search", f"{_ONLINE}.search", "Search a running service."),
    "mcp": Command("Search", f"{_ONLINE}.search", "Give language models a running service as tools."),
    "build": Command("Build", f"{_OFFLINE}.build", "Make a bundle of a recipe: tables, encoded corpus, indexes."),
    "corpus": Command("Build", f"{_OFFLINE}.corpus", "Make a corpus of text files, or of the rows of a table."),
    "verify": Command("Build", f"{_OFFLINE}.operate", "Check a bundle."),
    "push": Command("Operate", f"{_OFFLINE}.operate", "Write a bundle to an OpenSearch cluster."),
    "upsert": Command("Operate", f"{_OFFLINE}.operate", "Write documents to a journal or a cluster."),
    "delete": Command("Operate", f"{_OFFLINE}.operate", "Delete documents from a journal or a cluster."),
    "compact": Command("Operate", f"{_OFFLINE}.operate", "Make a new bundle of a bundle and its journal."),
    "restore": Command("Operate", f"{_OFFLINE}.operate", "Put a copy of a journal in its place."),
    "export": Command("Operate", f"{_OFFLINE}.operate", "Write the query encoder for another vector store."),
    "evaluate": Command(
        "Research", f"{_OFFLINE}.evaluate", "Measure a bundle on a test collection, or choose its weights."
    ),
    "train": Command("Research", f"{_OFFLINE}.train", "Train an adapter."),
}
"""Every command, in the order of help."""


class _Group(TyperGroup):
    """Has of each command what help lists, until it runs."""

    def __init__(self, **attributes: Any) -> None:
        listed = {
            name: TyperCommand(name, help=entry.help, rich_help_panel=entry.panel) for name, entry in COMMANDS.items()
        }
        super().__init__(**attributes | {"commands": listed})

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Import the command that the arguments name."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, COMMANDS[str(name)].load(str(name)), rest


def _open_searcher(bundle: "Bundle") -> AbstractContextManager["Searcher"]:
    """Open the serving engine for the commands that evaluate and train, which import nothing from the service."""
    from lightretriever.service.commands.evaluation import open_searcher

    return open_searcher(bundle)


app = typer.Typer(
    name="lightretriever",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"obj": _open_searcher},
)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(metadata.version("lightretriever-search"))
        raise typer.Exit


@app.callback(no_args_is_help=True)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_tell_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Hybrid search with the ranking of a neural model and no model in the query path."""


def main() -> None:
    """Run the command line."""
    run_console(app)


if __name__ == "__main__":
    main()
