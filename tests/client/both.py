"""Both clients behind one face, so that every test of a call is made with each of them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from lightretriever.service.client import AsyncSearchClient, SearchClient
from lightretriever.service.client.calls import Line
from lightretriever.service.schemas import (
    BatchRequest,
    BatchResponse,
    Document,
    DocumentChange,
    DocumentDeleted,
    DocumentWritten,
    EmbeddingsResponse,
    EncodeRequest,
    EncodeResponse,
    Info,
    Reloaded,
    SearchRequest,
    SearchResponse,
)

Query = str | SearchRequest


class Client(Protocol):
    def search(self, request: Query, /, **fields: Any) -> SearchResponse: ...
    def search_batch(self, searches: BatchRequest | Iterable[Query], /, **fields: Any) -> BatchResponse: ...
    def search_many(self, queries: Iterable[Query], /, **options: Any) -> Iterator[SearchResponse]: ...
    def encode(self, request: str | EncodeRequest, /, **fields: Any) -> EncodeResponse: ...
    def embeddings(self, texts: str | Sequence[str], /, *, model: str = "default") -> EmbeddingsResponse: ...
    def document(self, document_id: str, /) -> Document: ...
    def put_document(
        self,
        document_id: str,
        fields: Mapping[str, Any],
        /,
        *,
        vector: Sequence[float] | None = None,
        impacts: Mapping[str, int] | None = None,
        version: str | None = None,
        wait: bool = False,
    ) -> DocumentWritten: ...
    def put_documents(
        self, documents: Iterable[Line], /, *, batch_size: int = 32, wait: bool = False
    ) -> list[DocumentChange]: ...
    def delete_document(
        self, document_id: str, /, *, version: str | None = None, wait: bool = False
    ) -> DocumentDeleted: ...
    def info(self) -> Info: ...
    def ready(self) -> bool: ...
    def reload(self) -> Reloaded: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Driven:
    """The client for asyncio, driven from outside its event loop."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncSearchClient(*arguments, **options)

    def search(self, request: Query, /, **fields: Any) -> SearchResponse:
        return self._runner.run(self._client.search(request, **fields))

    def search_batch(self, searches: BatchRequest | Iterable[Query], /, **fields: Any) -> BatchResponse:
        return self._runner.run(self._client.search_batch(searches, **fields))

    def search_many(self, queries: Iterable[Query], /, **options: Any) -> Iterator[SearchResponse]:
        stream = self._client.search_many(queries, **options)

        async def following() -> SearchResponse | None:
            return await anext(stream, None)

        try:
            while (response := self._runner.run(following())) is not None:
                yield response
        finally:
            self._runner.run(self._closed(stream))

    @staticmethod
    async def _closed(stream: Any) -> None:
        await stream.aclose()

    def encode(self, request: str | EncodeRequest, /, **fields: Any) -> EncodeResponse:
        return self._runner.run(self._client.encode(request, **fields))

    def embeddings(self, texts: str | Sequence[str], /, *, model: str = "default") -> EmbeddingsResponse:
        return self._runner.run(self._client.embeddings(texts, model=model))

    def document(self, document_id: str, /) -> Document:
        return self._runner.run(self._client.document(document_id))

    def put_document(self, document_id: str, fields: Mapping[str, Any], /, **options: Any) -> DocumentWritten:
        return self._runner.run(self._client.put_document(document_id, fields, **options))

    def put_documents(self, documents: Iterable[Line], /, **options: Any) -> list[DocumentChange]:
        return self._runner.run(self._client.put_documents(documents, **options))

    def delete_document(self, document_id: str, /, **options: Any) -> DocumentDeleted:
        return self._runner.run(self._client.delete_document(document_id, **options))

    def info(self) -> Info:
        return self._runner.run(self._client.info())

    def ready(self) -> bool:
        return self._runner.run(self._client.ready())

    def reload(self) -> Reloaded:
        return self._runner.run(self._client.reload())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._client.aclose())
        self._runner.close()


Maker = Callable[..., Client]
BOTH: dict[str, Maker] = {"sync": SearchClient, "async": Driven}
