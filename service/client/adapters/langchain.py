"""The service as a retriever of LangChain (package langchain-core)."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field

from lightretriever.service.client.documents import add, delete, document_of, texts_of
from lightretriever.service.client.sync import SearchClient


class SearchRetriever(BaseRetriever):
    """Finds documents. `request` has fields of a search, such as `{"k": 5}`; keywords of `invoke` add to it. Metadata:
    see `documents.texts_of`. `ainvoke` searches in a thread."""

    client: SearchClient
    request: dict[str, Any] = Field(default_factory=dict)
    text_field: str = "text"

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun | None = None, **fields: Any
    ) -> list[Document]:
        texts = texts_of(self.client.search(query, **{**self.request, **fields}), self.text_field)
        return [Document(id=hit.id, page_content=text, metadata=metadata) for hit, text, metadata in texts]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **fields: Any
    ) -> list[Document]:
        return await asyncio.to_thread(self._get_relevant_documents, query, **fields)

    def add_documents(self, documents: Sequence[Document], *, ids: Sequence[str] | None = None) -> list[str]:
        """Write documents, and return their ids: `ids`, or else their own, or new ones. ValueError for another number
        of ids. The service encodes a document unless its metadata have `vector` and `impacts`."""
        ids = [document.id or str(uuid4()) for document in documents] if ids is None else list(ids)
        pairs = list(zip(ids, documents, strict=True))
        add(self.client, (document_of(key, item.page_content, item.metadata, self.text_field) for key, item in pairs))
        return ids

    def delete(self, ids: Sequence[str]) -> bool:
        """Delete documents. False if one of the ids has none; the others are deleted."""
        return delete(self.client, ids)
