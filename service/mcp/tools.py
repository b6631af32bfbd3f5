"""The tools, and the two ways to serve them: stdio, and streamable HTTP."""

from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket
from typing import Annotated, Any, Final

import uvicorn
from lightretriever.artifacts.bundle.software import package_version
from lightretriever.service.client.asynchronous import AsyncSearchClient
from lightretriever.service.client.errors import ClientError
from lightretriever.service.schemas import Document, Info, Mode, SearchResponse
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

__all__ = ["make_server", "serve_http", "serve_stdio"]

_INSTRUCTIONS: Final = (
    "Search of one collection of documents. `search` finds documents for a question or for words, and gives a part of "
    "each text; `document` gives a whole one. `info` says which fields can be filtered by, and which modes there are. "
    "`explain` says which words of a query gave a document its score."
)
_SNIPPETS: Final = {"fields": ["text"], "length": 500}
_READS: Final = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

QueryText = Annotated[str, Field(description="What to look for: a question, or words.")]
FilterObject = Annotated[
    dict[str, Any] | None,
    Field(
        description='Finds only documents that meet a condition on fields of `info`, such as {"field": "year", '
        '"gte": 2019} or {"and": [{"field": "source", "in": ["wiki"]}, {"not": {"field": "draft", "eq": true}}]}. '
        "Conditions: eq, in, gt, gte, lt, lte, exists."
    ),
]
SearchMode = Annotated[Mode, Field(description="All legs fused, or one of those that `info` lists.")]


def make_server(client: AsyncSearchClient) -> MCPServer:
    """A server of tools that ask the client's service. Its errors become errors of the tool, for the model to read."""
    version = package_version("lightretriever-search") or "not installed"
    server = MCPServer("lightretriever", version=version, instructions=_INSTRUCTIONS, log_level="WARNING")
    tools = _Tools(client)
    for tool in (tools.search, tools.document, tools.explain, tools.info):
        server.add_tool(tool, annotations=_READS)
    return server


async def serve_stdio(client: AsyncSearchClient) -> None:
    """Serve one model over standard input and output, until the input ends."""
    async with client:
        await make_server(client).run_stdio_async()


async def serve_http(client: AsyncSearchClient, listener: socket) -> None:
    """Serve any number of models over streamable HTTP at /mcp, until SIGTERM or Ctrl-C."""
    async with client:
        host = listener.getsockname()[0]
        app = make_server(client).streamable_http_app(host=host, stateless_http=True)
        await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])


class _Tools:
    def __init__(self, client: AsyncSearchClient) -> None:
        self._client = client

    async def search(
        self,
        query: QueryText,
        k: Annotated[int, Field(description="Number of hits.")] = 5,
        offset: Annotated[int, Field(description="Hits to skip, for the next page.")] = 0,
        filter: FilterObject = None,
        mode: SearchMode = "hybrid",
    ) -> SearchResponse:
        """Find documents. Each hit has its id, fields, and the part of its text that matches best."""
        with _told():
            found = await self._client.search(query, k=k, offset=offset, filter=filter, mode=mode, snippets=_SNIPPETS)
        for hit in found.hits:
            hit.fields.pop("text", None)  # `document` gives the whole text
        return found

    async def document(self, id: Annotated[str, Field(description="The id of a hit.")]) -> Document:
        """Give a whole document."""
        with _told():
            return await self._client.document(id)

    async def explain(
        self,
        query: QueryText,
        document: Annotated[str | None, Field(description="The id of a hit; null for the best `k` hits.")] = None,
        k: Annotated[int, Field(description="Number of hits, without `document`.")] = 3,
        filter: FilterObject = None,
        mode: SearchMode = "hybrid",
    ) -> SearchResponse:
        """Say why documents are found: the share of each leg and of each word of the query in their scores."""
        fields: dict[str, Any] = {"filter": filter, "mode": mode, "fields": []}
        with _told():
            if document is None:
                return await self._client.search(query, k=k, explain=True, **fields)
            most = (await self._client.info()).limits.candidates
            found = await self._client.search(query, k=most, **fields)
            for hit in found.hits:
                if hit.id == document:
                    return await self._client.search(query, k=1, offset=hit.rank - 1, explain=True, **fields)
            await self._client.document(document)
        raise ToolError(f"The document {document!r} is not among the first {len(found.hits)} hits of this query.")

    async def info(self) -> Info:
        """Describe the collection: its size, its fields, those to filter by, and the modes of search."""
        with _told():
            return await self._client.info()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        raise ToolError(str(error)) from error
