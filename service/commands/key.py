"""The command `key`: makes an API key."""

from typing import Annotated

import typer
from pydantic import ValidationError

from lightretriever.service.errors import SettingsError
from lightretriever.service.http.api_keys import new_key

__all__ = ["key"]


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
