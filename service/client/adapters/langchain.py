"""The service as a retriever of LangChain (package langchain-core)."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field

from lightretriever.service.client.asynchronous import AsyncSearchClient
from lightretriever.service.client.errors import ClientError
from lightretriever.service.client.hits import hit_metadata, hit_text
from lightretriever.service.client.sync import SearchClient
from lightretriever.service.client.writes import add, delete, document_of
from lightretriever.service.schemas import SearchResponse

__all__ = ["SearchRetriever"]


class SearchRetriever(BaseRetriever):
    """Finds documents with a search service.

    `request` holds fields of a search request, such as `{"k": 5}`; keywords of `invoke` add to it. The metadata of a
    document are its fields and those of `service.client.hits.SCORES`. Without `async_client`, the asynchronous methods
    use `client` in a thread. Errors are those of the client.

    `add_documents` and `delete` are those of a VectorStore, for a service that takes changes; both need a key with the
    scope `admin`. Their asynchronous forms use `client` in a thread.
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

    def add_documents(self, documents: Sequence[Document], *, ids: Sequence[str] | None = None) -> list[str]:
        """Write documents, and give their ids: `ids`, or else their own, or new ones for those without.

        A document's fields are its metadata and its text. The service encodes it, unless its metadata have `vector` and
        `impacts`. ClientError if there is another number of ids.
        """
        named = [document.id or str(uuid4()) for document in documents] if ids is None else list(ids)
        if len(named) != len(documents):
            raise ClientError(
                f"There are {len(named)} ids for {len(documents)} documents.", remedy="Give one for each."
            )
        pairs = zip(named, documents, strict=True)
        add(self.client, (document_of(one, it.page_content, it.metadata, self.text_field) for one, it in pairs))
        return named

    async def aadd_documents(self, documents: Sequence[Document], *, ids: Sequence[str] | None = None) -> list[str]:
        """As `add_documents`."""
        return await asyncio.to_thread(self.add_documents, documents, ids=ids)

    def delete(self, ids: Sequence[str]) -> bool:
        """Delete documents. False if one of the ids has none; the others are deleted."""
        return delete(self.client, ids)

    async def adelete(self, ids: Sequence[str]) -> bool:
        """As `delete`."""
        return await asyncio.to_thread(self.delete, ids)

    def _documents(self, response: SearchResponse) -> list[Document]:
        return [
            Document(
                id=hit.id,
                page_content=hit_text(hit.fields, self.text_field),
                metadata=hit_metadata(response, hit, self.text_field),
            )
            for hit in response.hits
        ]
