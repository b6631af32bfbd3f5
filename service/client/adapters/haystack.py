"""The service as a retriever and a document store of Haystack (package haystack-ai)."""

import asyncio
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict
from haystack.document_stores.types import DuplicatePolicy
from haystack.utils import Secret

from lightretriever.service.client.asynchronous import AsyncSearchClient
from lightretriever.service.client.errors import ClientError
from lightretriever.service.client.hits import hit_metadata, hit_text
from lightretriever.service.client.sync import SearchClient
from lightretriever.service.client.writes import add, delete, document_of
from lightretriever.service.schemas import SearchResponse

__all__ = ["SearchDocumentStore", "SearchRetriever"]


@component
class SearchRetriever:
    """Finds documents with a search service; `close` it or its pipeline at the end.

    `request` holds fields of a search request, such as `{"mode": "dense"}`; the input `request` adds to it, and `top_k`
    is the field `k`. A document's `meta` has its fields and those of `service.client.hits.SCORES`. `run_async` opens
    its own connection, so it works in any event loop. A saved pipeline has the name of the API key's variable, as in
    `Secret.from_env_var`. Errors are those of the client.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        api_key: Secret | None = None,
        top_k: int = 10,
        request: dict[str, Any] | None = None,
        timeout_s: float = 30.0,
        text_field: str = "text",
    ) -> None:
        self.url = url
        self.api_key = api_key
        self.top_k = top_k
        self.request = dict(request or {})
        self.timeout_s = timeout_s
        self.text_field = text_field
        self._client: SearchClient | None = None

    def to_dict(self) -> dict[str, Any]:
        """Give the settings for a saved pipeline."""
        return default_to_dict(
            self,
            url=self.url,
            api_key=self.api_key,
            top_k=self.top_k,
            request=self.request,
            timeout_s=self.timeout_s,
            text_field=self.text_field,
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SearchRetriever":
        """Restore the component of a saved pipeline."""
        made: SearchRetriever = default_from_dict(cls, data)
        return made

    def warm_up(self) -> None:
        """Create the client once, without sending a request."""
        self._opened()

    def close(self) -> None:
        """Close the client's connections; `Pipeline.close` calls it. The next run makes a client again."""
        if self._client is not None:
            self._client.close()
            self._client = None

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, top_k: int | None = None, request: dict[str, Any] | None = None
    ) -> dict[str, list[Document]]:
        """Find documents, best first."""
        return self._documents(self._opened().search(query, **self._fields(top_k, request)))

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, top_k: int | None = None, request: dict[str, Any] | None = None
    ) -> dict[str, list[Document]]:
        """Find documents, best first."""
        async with AsyncSearchClient(self.url, api_key=self._key(), timeout_s=self.timeout_s) as client:
            return self._documents(await client.search(query, **self._fields(top_k, request)))

    def _opened(self) -> SearchClient:
        if self._client is None:
            self._client = SearchClient(self.url, api_key=self._key(), timeout_s=self.timeout_s)
        return self._client

    def _key(self) -> str | None:
        return None if self.api_key is None else self.api_key.resolve_value()

    def _fields(self, top_k: int | None, request: dict[str, Any] | None) -> dict[str, Any]:
        chosen = {"k": self.top_k, **self.request, **(request or {})}
        return chosen if top_k is None else chosen | {"k": top_k}

    def _documents(self, response: SearchResponse) -> dict[str, list[Document]]:
        return {
            "documents": [
                Document(
                    id=hit.id,
                    content=hit_text(hit.fields, self.text_field),
                    meta=hit_metadata(response, hit, self.text_field),
                    score=hit.score,
                )
                for hit in response.hits
            ]
        }


class SearchDocumentStore:
    """Writes and deletes documents of a service that takes changes; for a DocumentWriter.

    `api_key` needs the scope `admin`. It neither lists nor counts documents. A saved pipeline has the name of the
    key's variable. Errors are those of the client.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        api_key: Secret | None = None,
        timeout_s: float = 60.0,
        text_field: str = "text",
    ) -> None:
        self.url = url
        self.api_key = api_key
        self.timeout_s = timeout_s
        self.text_field = text_field

    def to_dict(self) -> dict[str, Any]:
        """Give the settings for a saved pipeline."""
        return default_to_dict(
            self, url=self.url, api_key=self.api_key, timeout_s=self.timeout_s, text_field=self.text_field
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SearchDocumentStore":
        """Restore the store of a saved pipeline."""
        return default_from_dict(cls, data)

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Write documents in place of those with the same ids, and give how many.

        A document's fields are its `meta` and its `content`. The service encodes it, unless `meta` has `vector` and
        `impacts`; its `embedding` is not read. ClientError for the policies SKIP and FAIL.
        """
        if policy not in (DuplicatePolicy.NONE, DuplicatePolicy.OVERWRITE):
            raise ClientError(
                f"The policy is {policy.name}, but the service writes over documents.", remedy="Name OVERWRITE."
            )
        with self._client() as client:
            add(client, (document_of(one.id, one.content or "", one.meta, self.text_field) for one in documents))
        return len(documents)

    async def write_documents_async(
        self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE
    ) -> int:
        """As `write_documents`, in a thread."""
        return await asyncio.to_thread(self.write_documents, documents, policy)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents. An id that none has is passed over."""
        with self._client() as client:
            delete(client, document_ids)

    async def delete_documents_async(self, document_ids: list[str]) -> None:
        """As `delete_documents`, in a thread."""
        await asyncio.to_thread(self.delete_documents, document_ids)

    def _client(self) -> SearchClient:
        key = None if self.api_key is None else self.api_key.resolve_value()
        return SearchClient(self.url, api_key=key, timeout_s=self.timeout_s)
