"""The service as a retriever and a document store of Haystack (package haystack-ai)."""

from typing import Any

from haystack import Document, component, default_to_dict
from haystack.document_stores.types import DuplicatePolicy
from haystack.utils import Secret

from lightretriever.service.client.documents import add, delete, document_of, texts_of
from lightretriever.service.client.errors import ClientError
from lightretriever.service.client.sync import SearchClient


class SearchDocumentStore(SearchClient):
    """A client as the store of a `SearchRetriever` or a `DocumentWriter`, which needs a key with the scope `admin`."""

    def __init__(
        self, url: str, *, api_key: Secret | None = None, timeout_s: float = 30.0, text_field: str = "text"
    ) -> None:
        super().__init__(url, api_key=api_key.resolve_value() if api_key else None, timeout_s=timeout_s)
        self.settings = {"url": url, "api_key": api_key, "timeout_s": timeout_s, "text_field": text_field}
        self.text_field = text_field

    def to_dict(self) -> dict[str, Any]:
        """Return the settings for a saved pipeline."""
        return default_to_dict(self, **self.settings)

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """Write documents, with `meta` as fields, over those with their ids; return how many. The service encodes a
        document unless its `meta` has `vector` and `impacts`. ClientError for the policies SKIP and FAIL."""
        if policy not in (DuplicatePolicy.NONE, DuplicatePolicy.OVERWRITE):
            raise ClientError(f"The policy {policy.name} is not supported.", remedy="Name OVERWRITE.")
        add(self, (document_of(item.id, item.content or "", item.meta, self.text_field) for item in documents))
        return len(documents)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Delete documents. An id that none has is passed over."""
        delete(self, document_ids)


@component
class SearchRetriever:
    """Finds documents. `request` has fields of a search; the input adds to it. `meta`: see `documents.texts_of`."""

    def __init__(self, document_store: SearchDocumentStore, request: dict[str, Any] | None = None) -> None:
        self.document_store, self.request = document_store, request

    @component.output_types(documents=list[Document])
    def run(self, query: str, request: dict[str, Any] | None = None) -> dict[str, list[Document]]:
        """Find documents, best first."""
        store, fields = self.document_store, {**(self.request or {}), **(request or {})}
        texts = texts_of(store.search(query, **fields), store.text_field)
        return {"documents": [Document(id=hit.id, content=text, meta=m, score=hit.score) for hit, text, m in texts]}

    def close(self) -> None:
        """Close the store; `Pipeline.close` calls it."""
        self.document_store.close()
