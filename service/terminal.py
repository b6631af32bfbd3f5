"""The command `search`: asks a running service."""

import json
import sys
from typing import Annotated, Any, Final

import typer

from lightretriever.artifacts.errors import importing
from lightretriever.service.schemas import Mode, SearchResponse

__all__ = ["search"]

_SNIPPETS: Final = {"fields": ["text"], "length": 300}


def search(
    query: Annotated[str, typer.Argument(help="What to look for.", show_default=False)],
    url: Annotated[
        str, typer.Option(help="Address of the service.", envvar="LIGHTRETRIEVER_URL")
    ] = "http://127.0.0.1:8080",
    k: Annotated[int | None, typer.Option(help="Number of hits.", show_default="10")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Both legs, or one of them.", show_default="hybrid")] = None,
    task: Annotated[str | None, typer.Option(help="Token table that encodes the query.")] = None,
    field: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Any field of a request; the value is JSON, or else text."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say what each word adds to the scores.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer's JSON unchanged.")] = False,
    api_key: Annotated[
        str | None, typer.Option(help="API key, if the service needs one.", envvar="LIGHTRETRIEVER_API_KEY")
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Most seconds for the whole call.")] = 30.0,
) -> None:
    """Search a running service; exit status 0 with hits, 1 without, 2 on an error."""
    with importing("client"):
        from lightretriever.service.client.calls import search_call
        from lightretriever.service.client.sync import SearchClient
    given = {"k": k, "mode": mode, "task": task}
    fields = dict(map(_field, field or ())) | {name: value for name, value in given.items() if value is not None}
    if explain:
        fields["explain"] = True
    if not as_json and "fields" not in fields:
        fields.setdefault("snippets", _SNIPPETS)
    call = search_call(query, fields)
    with SearchClient(url, api_key=api_key, timeout_s=timeout_s) as client:
        body = client.call(call.raw())
    response = call.read(body)
    if as_json:
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
    else:
        _show(response)
    if not response.hits:
        raise typer.Exit(1)


def _show(response: SearchResponse) -> None:
    from rich.console import Console

    from lightretriever.service.client.render import show

    # Print text verbatim: no markup, no emoji codes, no colours for numbers.
    show(Console(highlight=False, markup=False, emoji=False), response)


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} has no equals sign; write it as in candidates=500.", param_hint="--set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
