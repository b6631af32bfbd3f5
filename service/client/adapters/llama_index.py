"""The service as a retriever of LlamaIndex (package llama-index-core)."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode

from lightretriever.service.client.documents import SCORES, add, delete, document_of, texts_of
from lightretriever.service.client.sync import SearchClient


class SearchRetriever(BaseRetriever):
    """Finds nodes. `request` has fields of a search, such as `{"k": 5}`. Metadata: see `documents.texts_of`, of which
    `SCORES` are kept from language models and embeddings. `aretrieve` searches in a thread."""

    def __init__(
        self, client: SearchClient, *, request: Mapping[str, Any] | None = None, text_field: str = "text"
    ) -> None:
        super().__init__()
        self._client, self._request, self._text_field = client, dict(request or {}), text_field

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        texts = texts_of(self._client.search(query_bundle.query_str, **self._request), self._text_field)
        hidden = {"excluded_llm_metadata_keys": list(SCORES), "excluded_embed_metadata_keys": list(SCORES)}
        nodes = ((hit, TextNode(id_=hit.id, text=text, metadata=metadata, **hidden)) for hit, text, metadata in texts)
        return [NodeWithScore(node=node, score=hit.score) for hit, node in nodes]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def add(self, nodes: Sequence[BaseNode]) -> list[str]:
        """Write nodes, return their ids. Without `vector` and `impacts` in the metadata, the service encodes them."""
        texts = ((node, node.get_content(metadata_mode=MetadataMode.NONE)) for node in nodes)
        add(self._client, (document_of(node.node_id, text, node.metadata, self._text_field) for node, text in texts))
        return [node.node_id for node in nodes]

    def delete_nodes(self, node_ids: Sequence[str]) -> None:
        """Delete nodes by their ids. One that is not there is passed over."""
        delete(self._client, node_ids)
