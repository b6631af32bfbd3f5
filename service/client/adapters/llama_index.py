"""The service as a retriever of LlamaIndex (package llama-index-core)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode

from lightretriever.service.client.asynchronous import AsyncSearchClient
from lightretriever.service.client.hits import SCORES, hit_metadata, hit_text
from lightretriever.service.client.sync import SearchClient
from lightretriever.service.client.writes import add, delete, document_of
from lightretriever.service.schemas import SearchResponse

__all__ = ["SearchRetriever"]


class SearchRetriever(BaseRetriever):
    """Finds nodes with a search service.

    `request` holds fields of a search request, such as `{"k": 5}`. The metadata of a node are the document's fields and
    those of `service.client.hits.SCORES`; the latter are kept from language models and embeddings. Without
    `async_client`, `aretrieve` uses `client` in a thread. Errors are those of the client.

    `add` and `delete_nodes` are those of a vector store, for a service that takes changes; both need a key with the
    scope `admin`. Their asynchronous forms use `client` in a thread.
    """

    def __init__(
        self,
        client: SearchClient,
        async_client: AsyncSearchClient | None = None,
        *,
        request: Mapping[str, Any] | None = None,
        text_field: str = "text",
    ) -> None:
        super().__init__()
        self._client = client
        self._async_client = async_client
        self._request = dict(request or {})
        self._text_field = text_field

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return self._nodes(self._client.search(query_bundle.query_str, **self._request))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        if self._async_client is None:
            return await asyncio.to_thread(self._retrieve, query_bundle)
        return self._nodes(await self._async_client.search(query_bundle.query_str, **self._request))

    def add(self, nodes: Sequence[BaseNode]) -> list[str]:
        """Write nodes under their ids, which it gives.

        A document's fields are the node's metadata and its text. The service encodes it, unless the metadata have
        `vector` and `impacts`; the node's `embedding` is not read.
        """
        texts = ((node, node.get_content(metadata_mode=MetadataMode.NONE)) for node in nodes)
        add(self._client, (document_of(node.node_id, text, node.metadata, self._text_field) for node, text in texts))
        return [node.node_id for node in nodes]

    async def async_add(self, nodes: Sequence[BaseNode]) -> list[str]:
        """As `add`."""
        return await asyncio.to_thread(self.add, nodes)

    def delete_nodes(self, node_ids: Sequence[str]) -> None:
        """Delete nodes by their ids. One that is not there is passed over."""
        delete(self._client, node_ids)

    async def adelete_nodes(self, node_ids: Sequence[str]) -> None:
        """As `delete_nodes`."""
        await asyncio.to_thread(self.delete_nodes, node_ids)

    def _nodes(self, response: SearchResponse) -> list[NodeWithScore]:
        return [
            NodeWithScore(
                node=TextNode(
                    id_=hit.id,
                    text=hit_text(hit.fields, self._text_field),
                    metadata=hit_metadata(response, hit, self._text_field),
                    excluded_llm_metadata_keys=list(SCORES),
                    excluded_embed_metadata_keys=list(SCORES),
                ),
                score=hit.score,
            )
            for hit in response.hits
        ]
