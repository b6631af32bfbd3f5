"""The commands `search`, which asks a running service, and `mcp`, which gives it to language models as tools."""

import asyncio
import json
import os
import socket
import sys
import unicodedata
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from lightretriever.artifacts.errors import importing
from lightretriever.service.errors import SettingsError, shortened
from lightretriever.service.schemas import Hit, LegScore, Mode, SearchResponse, WordShares

_SNIPPETS: Final = {"fields": ["text"], "length": 300}
_INDENT: Final = " " * 5
_JOINERS: Final = "\u200c\u200d"  # characters without a width of their own that join their neighbours


def search(
    query: Annotated[str, typer.Argument(help="What to look for.", show_default=False)],
    url: Annotated[
        str, typer.Option(help="Address of the service.", envvar="LIGHTRETRIEVER_URL")
    ] = "http://127.0.0.1:8080",
    k: Annotated[int | None, typer.Option(help="Number of hits.", show_default="10")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Both legs, or one of them.", show_default="hybrid")] = None,
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
        from lightretriever.service.client import SearchClient, calls
    options = {"k": k, "mode": mode, "explain": explain or None}
    fields = dict(map(_field, field or ())) | {name: value for name, value in options.items() if value is not None}
    if not as_json and "fields" not in fields:
        fields.setdefault("snippets", _SNIPPETS)
    call = calls.search(query, fields)
    with SearchClient(url, api_key=api_key, timeout_s=timeout_s) as client:
        body = client.send(call)
    response = call.read(body)
    if as_json:
        sys.stdout.buffer.write(body + b"\n")
        sys.stdout.buffer.flush()
    else:
        print("\n".join(lines(response)))
    if not response.hits:
        raise typer.Exit(1)


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} has no equals sign; write it as in candidates=500.", param_hint="--set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def lines(response: SearchResponse) -> Iterator[str]:
    """Yield degraded legs, what became of the query, the hits, best first, and the times."""
    for leg in response.degraded:
        yield f"degraded: {leg} failed or was late and is missing here"
    if response.did_you_mean is not None:
        yield f"did you mean: {_line(response.did_you_mean)}"
    if response.searched is not None:
        yield f"searched for: {_line(response.searched)}"
    if response.excluded is not None:
        yield f"without documents that have: {_line(', '.join(response.excluded))}"
    if loose := [phrase for phrase, required in (response.phrases or {}).items() if not required]:
        yield f"not required as phrases: {_line(', '.join(loose))}"
    if not response.hits:
        yield "no hits"
    elif response.matched == "none":
        yield "no document matches well; these are the nearest"
    for hit in response.hits:
        yield from _hit_lines(hit)
    count = len(response.hits)
    matched = f", best match {response.matched}" if response.matched and response.hits else ""
    stages = {name: ms for name, ms in response.timings_ms.model_dump().items() if ms is not None}
    times = f"{stages.pop('total'):.1f} ms ({', '.join(f'{name} {ms:.2f}' for name, ms in stages.items())})"
    hits = f"{count} hit{'' if count == 1 else 's'} of {response.candidates:,} candidates{matched}"
    yield f"{hits}, {response.mode}, task {response.task}; {times}"


def _hit_lines(hit: Hit) -> Iterator[str]:
    name, title = _line(hit.id), _line(hit.fields.get("title"))
    yield f"{hit.rank:>3}. {title or name}"
    legs = (_leg("dense", hit.dense), _leg("sparse", hit.sparse)) if hit.dense or hit.sparse else ()
    yield "  ".join([f"{_INDENT}{hit.score:.4f}", *legs, *([f"id {name}"] if title else ())])
    if snippet := _snippet(hit):
        yield _INDENT + snippet
    others = ((name, value) for name, value in hit.fields.items() if name not in ("title", "text"))
    if plain := [f"{_line(name)}: {_line(value)}" for name, value in others if isinstance(value, str | int | float)]:
        yield _INDENT + "  ".join(plain)
    for word in hit.explanation.words if hit.explanation else ():
        yield f"{_INDENT}{_word(word)}"


def _leg(name: str, leg: LegScore | None) -> str:
    if leg is None:
        return f"{name} –"
    return f"{name} {leg.score:.4g} " + ("not proposed" if leg.rank is None else f"#{leg.rank}")


def _snippet(hit: Hit) -> str:
    text, snippet = hit.fields.get("text"), (hit.snippets or {}).get("text")
    if snippet is None:
        return _line(text, 300)
    cut = isinstance(text, str) and snippet.start + len(snippet.text) < len(text)
    return f"{'…' if snippet.start else ''}{_visible(snippet.text).rstrip()}{'…' if cut else ''}"


def _word(word: WordShares) -> str:
    shares = (("dense", word.dense), ("sparse", word.sparse))
    scored = [f"{leg} {share:.4g}" for leg, share in shares if share is not None]
    times, added = f" × {word.count}" if word.count > 1 else "", ["added by meaning"] if word.added else []
    return "  ".join([f"{_line(word.word, 40)}{times}", *scored, *added])


def _line(value: object, length: int = 100) -> str:
    """Return a value as one line of at most `length` characters."""
    return "" if value is None else shortened(" ".join(_visible(str(value)).split()), length)


def _visible(text: str) -> str:
    """Replace control characters, by which a document could command the terminal, with blanks."""
    return "".join(c if c in _JOINERS or unicodedata.category(c)[0] != "C" else " " for c in text)


def mcp(
    url: Annotated[
        str, typer.Argument(help="Address of the service.", envvar="LIGHTRETRIEVER_URL")
    ] = "http://127.0.0.1:8080",
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve streamable HTTP there, at /mcp, in place of stdio.")
    ] = None,
    timeout_s: Annotated[float, typer.Option(help="Most seconds for a call of the service.")] = 30.0,
) -> None:
    """Give language models a running service as tools, by the Model Context Protocol; the variable
    LIGHTRETRIEVER_API_KEY has its API key."""
    with importing("mcp"):
        from lightretriever.service.client import AsyncSearchClient
        from lightretriever.service.client.adapters.mcp import serve
    client = AsyncSearchClient(url, api_key=os.environ.get("LIGHTRETRIEVER_API_KEY"), timeout_s=timeout_s)
    asyncio.run(serve(client, None if http is None else _listen(http)))


def _listen(address: str) -> socket.socket:
    """Listen on HOST:PORT, and print the address, with a warning if other machines reach it."""
    try:
        place = urlsplit(f"//{address}")
        if place.hostname is None or place.port is None:
            raise ValueError("this is no HOST:PORT")
        family = socket.AF_INET6 if ":" in place.hostname else socket.AF_INET
        listener = socket.create_server((place.hostname, place.port), family=family)
    except (OSError, ValueError) as error:
        remedy = "Name a free address of this machine, as in 127.0.0.1:8090."
        raise SettingsError(f"--http {address}: {error}.", remedy=remedy) from error
    host, port = listener.getsockname()[:2]
    typer.echo(f"tools at http://{f'[{host}]' if ':' in host else host}:{port}/mcp", err=True)
    if not ip_address(host).is_loopback:
        typer.echo("warning: whoever reaches this address may search; keep it behind a proxy with a login.", err=True)
    return listener
