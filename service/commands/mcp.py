"""The command `mcp`: gives a running service to language models as tools."""

import asyncio
import os
import socket
from ipaddress import ip_address
from typing import Annotated
from urllib.parse import urlsplit

import typer

from lightretriever.artifacts.errors import importing
from lightretriever.service.errors import SettingsError


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
