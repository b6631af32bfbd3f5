"""The command `mcp`: gives a running service to language models as tools.

`python -m lightretriever.service.mcp URL` works with only the list mcp.txt installed.
"""

import asyncio
import os
import re
import socket
from ipaddress import ip_address
from typing import Annotated, Final

import typer

from lightretriever.artifacts.cli.console import run_console
from lightretriever.artifacts.errors import importing
from lightretriever.service.errors import SettingsError

_ADDRESS: Final = re.compile(r"(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:\[\]]+)):(?P<port>[0-9]{1,5})")


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
        from lightretriever.service.mcp.tools import serve_http, serve_stdio
    client = AsyncSearchClient(url, api_key=os.environ.get("LIGHTRETRIEVER_API_KEY"), timeout_s=timeout_s)
    if http is None:
        asyncio.run(serve_stdio(client))
    else:
        asyncio.run(serve_http(client, _listen(http)))


def _listen(address: str) -> socket.socket:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65_535:
        raise typer.BadParameter(f"{address!r} is no HOST:PORT, as in 127.0.0.1:8090.", param_hint="--http")
    host = match["ipv6"] or match["host"]
    try:
        family = socket.AF_INET6 if match["ipv6"] else socket.AF_INET
        listener = socket.create_server((host, int(match["port"])), family=family)
    except OSError as error:
        raise SettingsError(f"--http {address}: {error.strerror or error}.", remedy="Name another address.") from error
    bound, port = listener.getsockname()[:2]
    name = f"[{bound}]" if match["ipv6"] else bound
    typer.echo(f"tools at http://{name}:{port}/mcp", err=True)
    if not ip_address(bound).is_loopback:
        typer.echo("warning: whoever reaches this address may search; keep it behind a proxy with a login.", err=True)
    return listener


def main() -> None:
    """Run the command."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(mcp)
    run_console(app)


if __name__ == "__main__":
    main()
