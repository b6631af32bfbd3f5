"""The service as tools of a language model, by the Model Context Protocol (package mcp): docs/howto/mcp.md."""

from collections.abc import Awaitable, Callable
from functools import wraps
from socket import socket
from typing import Annotated, Any, Final

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from mcp.types import ToolAnnotations
from pydantic import Field, create_model

from lightretriever.artifacts.reports import package_version
from lightretriever.service import schemas
from lightretriever.service.client import AsyncSearchClient, ClientError, calls
from lightretriever.service.schemas import Model, optional

_INSTRUCTIONS: Final = (
    "Search of collections of documents. `search` finds documents for a question or for words, and gives a part of "
    "each text; `matched` says how well it matches: `strong`, `weak`, or `none`. `document` gives a whole text. "
    "`collections` lists the collections; without a `collection`, every tool means the first. `info` says which fields "
    "can be filtered by, and which modes there are. `explain` says which words of a query gave a document its score."
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
CollectionName = Annotated[str | None, Field(description="One of `collections`; null for the first.")]
SearchMode = Annotated[
    schemas.Mode | None, Field(description="Both legs fused (hybrid, the default), or one of those that `info` lists.")
]


class FoundDocument(Model):
    """A hit, in as few words as a model needs."""

    id: str
    score: float
    matched: schemas.Matched | None = optional()
    fields: dict[str, Any] = Field(description="All but the text.")
    text: str | None = optional("The part of its text that matches best; `document` gives the whole text.")


class FoundDocuments(Model):
    """The hits of a search, best first."""

    hits: list[FoundDocument]
    matched: schemas.Matched | None = optional("How well the best document matches.")
    degraded: list[str] = optional("Parts of the service that did not answer.", default=[])


def make_server(client: AsyncSearchClient) -> MCPServer:
    """A server of tools that ask the client's service. Its errors become errors of the tool, for the model to read."""
    version = package_version("lightretriever-search") or "not installed"
    asking = _Tools(client)
    tools = [_strict(one) for one in (asking.search, asking.document, asking.explain, asking.info, asking.collections)]
    return MCPServer("lightretriever", version=version, instructions=_INSTRUCTIONS, tools=tools, log_level="WARNING")


def _strict(function: Callable[..., Awaitable[Any]]) -> Tool:
    """Make a tool that refuses arguments it does not have, which the library's own would ignore."""

    @wraps(function)
    async def ask(*arguments: Any, **named: Any) -> Any:
        try:
            return await function(*arguments, **named)
        except ClientError as error:
            raise ToolError(str(error)) from error

    tool = Tool.from_function(ask, annotations=_READS)
    model = tool.fn_metadata.arg_model
    tool.fn_metadata.arg_model = arguments = create_model(model.__name__, __base__=(_Strict, model))
    tool.parameters = arguments.model_json_schema(by_alias=True)
    return tool


async def serve(client: AsyncSearchClient, listener: socket | None) -> None:
    """Serve one model over standard input and output, until the input ends; with a `listener` any number of models over
    streamable HTTP at /mcp, until SIGTERM or Ctrl-C."""
    async with client:
        server = make_server(client)
        if listener is None:
            await server.run_stdio_async()
        else:
            app = server.streamable_http_app(host=listener.getsockname()[0], stateless_http=True)
            await uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener])


class _Strict(ArgModelBase, extra="forbid"):
    pass


class _Tools:
    def __init__(self, client: AsyncSearchClient) -> None:
        self._client = client

    async def search(
        self,
        query: QueryText,
        k: Annotated[int | None, Field(description="Number of hits; null for 5.")] = None,
        offset: Annotated[int | None, Field(description="Hits to skip, for the next page.")] = None,
        filter: FilterObject = None,
        mode: SearchMode = None,
        collection: CollectionName = None,
    ) -> FoundDocuments:
        """Find documents. Each hit has its id, fields, and the part of its text that matches best."""
        fields = _present(k=5 if k is None else k, offset=offset, filter=filter, mode=mode, snippets=_SNIPPETS)
        response = await self._client.call(calls.search(query, fields).within(collection))
        hits = [
            FoundDocument(
                id=hit.id,
                score=hit.score,
                matched=hit.matched,
                fields={name: value for name, value in hit.fields.items() if name != "text"},
                text=hit.snippets["text"].text if hit.snippets and "text" in hit.snippets else None,
            )
            for hit in response.hits
        ]
        return FoundDocuments(hits=hits, matched=response.matched, degraded=list(response.degraded))

    async def document(
        self, id: Annotated[str, Field(description="The id of a hit.")], collection: CollectionName = None
    ) -> schemas.Document:
        """Return a whole document."""
        return await self._client.call(calls.document(id).within(collection))

    async def explain(
        self,
        query: QueryText,
        document: Annotated[str | None, Field(description="The id of a hit; null for the best `k` hits.")] = None,
        k: Annotated[int | None, Field(description="Number of hits, without `document`; null for 3.")] = None,
        filter: FilterObject = None,
        mode: SearchMode = None,
        collection: CollectionName = None,
    ) -> schemas.SearchResponse:
        """Say why documents are found: the share of each leg and of each word of the query in their scores."""
        fields = _present(filter=filter, mode=mode, fields=[])

        async def search(**more: Any) -> schemas.SearchResponse:
            return await self._client.call(calls.search(query, fields | more).within(collection))

        if document is None:
            return await search(k=3 if k is None else k, explain=True)
        limit = (await self.info(collection)).limits.candidates
        ranking = await search(k=limit)
        for hit in ranking.hits:
            if hit.id == document:
                return await search(k=1, offset=hit.rank - 1, explain=True)
        await self.document(document, collection)
        raise ToolError(f"The document {document!r} is not among the first {len(ranking.hits)} hits of this query.")

    async def info(self, collection: CollectionName = None) -> schemas.Info:
        """Describe a collection: its size, its fields, those to filter by, and the modes of search."""
        return await self._client.call(calls.INFO.within(collection))

    async def collections(self) -> schemas.CollectionList:
        """List the collections with their numbers of documents."""
        return await self._client.collections()


def _present(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not null: models send null for what they leave out."""
    return {name: value for name, value in fields.items() if value is not None}
