"""The service as a retriever of LangChain (package langchain-core)."""

import asyncio
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from lightretriever.service.client.asynchronous import AsyncSearchClient
from lightretriever.service.client.hits import hit_metadata, hit_text
from lightretriever.service.client.sync import SearchClient
from lightretriever.service.schemas import SearchResponse
from pydantic import Field

__all__ = ["SearchRetriever"]


class SearchRetriever(BaseRetriever):
    """Finds documents with a search service.

    `request` holds fields of a search request, such as `{"k": 5}`; keywords of `invoke` add to it. The metadata of a
    document are its fields and those of `service.client.hits.SCORES`. Without `async_client`, the asynchronous methods
    use `client` in a thread. Errors are those of the client.
    """

    client: SearchClient
    async_client: AsyncSearchClient | None = None
    request: dict[str, Any] = Field(default_factory=dict)
    text_field: str = "text"

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **fields: Any
    ) -> list[Document]:
        return self._documents(self.client.search(query, **{**self.request, **fields}))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **fields: Any
    ) -> list[Document]:
        request = {**self.request, **fields}
        if self.async_client is None:
            return self._documents(await asyncio.to_thread(self.client.search, query, **request))
        return self._documents(await self.async_client.search(query, **request))

    def _documents(self, response: SearchResponse) -> list[Document]:
        return [
            Document(
                id=hit.id,
                page_content=hit_text(hit.fields, self.text_field),
                metadata=hit_metadata(response, hit, self.text_field),
            )
            for hit in response.hits
        ]
