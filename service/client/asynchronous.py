"""The client for asyncio."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2

from lightretriever.service.client.calls import (
    BatchSize,
    Call,
    Line,
    Numbered,
    Query,
    batch_call,
    check_stream,
    collections_call,
    delete_call,
    document_call,
    embeddings_call,
    encode_call,
    info_call,
    numbered_async,
    put_call,
    put_many_call,
    ready_call,
    reload_call,
    search_call,
)
from lightretriever.service.client.connection import Connection, PerProcess
from lightretriever.service.client.errors import AnswerError, ClientError, UnreachableError
from lightretriever.service.client.retries import Retries
from lightretriever.service.schemas import (
    BatchRequest,
    BatchResponse,
    CollectionList,
    Document,
    DocumentChange,
    DocumentDeleted,
    DocumentWritten,
    EmbeddingsResponse,
    EncodeRequest,
    EncodeResponse,
    Info,
    Reloaded,
    SearchResponse,
)

__all__ = ["AsyncSearchClient"]

T = TypeVar("T")
M = TypeVar("M")


class AsyncSearchClient:
    """Calls a search service from asyncio, with the arguments and errors of SearchClient.

    Use it in one event loop, and `aclose` it or use it in an `async with` statement. A cancelled call ends at once and
    discards its connection.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8080",
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        retries: Retries | None = None,
    ) -> None:
        self._connection = Connection(base_url, api_key=api_key, timeout_s=timeout_s, retries=retries)
        self._http = PerProcess(self._opened)

    async def search(self, request: Query | None = None, /, **fields: Any) -> SearchResponse:
        """Search for a SearchRequest, or for a text with the fields of a SearchRequest as keywords. Without a text,
        list the documents that match `filter`."""
        return await self.call(search_call(request, fields))

    async def search_batch(self, searches: BatchRequest | Iterable[Query], /, **fields: Any) -> BatchResponse:
        """Make several searches in one request. Keywords are the fields of each search that is a text."""
        return await self.call(batch_call(searches, fields))

    def search_many(
        self,
        queries: Iterable[Query] | AsyncIterable[Query],
        /,
        *,
        batch_size: int = 32,
        concurrency: int = 4,
        **fields: Any,
    ) -> AsyncGenerator[SearchResponse]:
        """Give the answers to any number of queries, in their order; see SearchClient.

        If you leave the loop early, `aclose` the generator to cancel running requests.
        """
        check_stream(batch_size, concurrency)
        return self._stream(numbered_async(queries, batch_size), BatchSize(batch_size), concurrency, fields)

    async def encode(self, request: str | EncodeRequest, /, **fields: Any) -> EncodeResponse:
        """Encode a text as a query, from an EncodeRequest or a text with the other fields as keywords."""
        return await self.call(encode_call(request, fields))

    async def embeddings(self, texts: str | Sequence[str], /, *, model: str = "default") -> EmbeddingsResponse:
        """Encode texts as queries; `model` is a task, `default` the default one."""
        return await self.call(embeddings_call(texts, model))

    async def document(self, document_id: str, /) -> Document:
        """Give a stored document. AnswerError of kind `document_not_found` if none has this id."""
        return await self.call(document_call(document_id))

    async def put_document(
        self,
        document_id: str,
        fields: Mapping[str, Any],
        /,
        *,
        vector: Sequence[float] | None = None,
        impacts: Mapping[str, int] | None = None,
        version: str | None = None,
        wait: bool = False,
    ) -> DocumentWritten:
        """Write a document of a service that takes changes; needs a key with the scope `admin`.

        A vector and impacts that are not given stay, as long as title and text do; a service with a model encodes
        another text, which may take as long as its `encode_timeout_s`. With `version`, only over that one, without
        retries: AnswerError of kind `version_conflict` for another. `wait`: until searches see it.
        """
        return await self.call(put_call(document_id, fields, vector, impacts, version, wait=wait))

    async def put_documents(
        self, documents: Iterable[Line] | AsyncIterable[Line], /, *, batch_size: int = 32, wait: bool = False
    ) -> list[DocumentChange]:
        """Write and delete any number of documents in their order; see SearchClient."""
        check_stream(batch_size, 1)
        size, done = BatchSize(batch_size), list[DocumentChange]()
        async for batch in numbered_async(documents, batch_size):
            for answer in await self._answers(
                batch, size, lambda lines, first: put_many_call(lines, first=first, wait=wait)
            ):
                done += answer.results
        return done

    async def delete_document(
        self, document_id: str, /, *, version: str | None = None, wait: bool = False
    ) -> DocumentDeleted:
        """Delete a document of a service that takes changes, without retries; as `put_document`. AnswerError of kind
        `document_not_found` if none has this id."""
        return await self.call(delete_call(document_id, version, wait=wait))

    async def collections(self) -> CollectionList:
        """List the collections. Each has every route below `/collections/NAME`, which may be part of `base_url`."""
        return await self.call(collections_call())

    async def info(self) -> Info:
        """Describe the served bundle and the limits of requests."""
        return await self.call(info_call())

    async def ready(self) -> bool:
        """Tell whether the service is ready; False if it is unreachable. No retries."""
        try:
            await self.call(ready_call())
        except UnreachableError:
            return False
        except AnswerError as error:
            if error.passing:
                return False
            raise
        return True

    async def reload(self) -> Reloaded:
        """Make the service load its folder's present bundle, which takes time; needs a key with the scope `admin`."""
        return await self.call(reload_call())

    async def call(self, call: Call[T]) -> T:
        """Make one of the calls of `service.client.calls`, with retries."""
        attempts = self._connection.attempts(once=call.once)
        while True:
            try:
                return await self._attempt(call, attempts.begin())
            except ClientError as error:
                wait_s = attempts.wait_s(error)
            await asyncio.sleep(wait_s)

    async def aclose(self) -> None:
        """Close all connections."""
        if (http := self._http.pop()) is not None:
            await http.aclose()

    async def __aenter__(self) -> Self:
        """Give the client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self.aclose()

    def _opened(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(**self._connection.http_options(), timeout=None)

    async def _attempt(self, call: Call[T], left_s: float) -> T:
        try:
            async with asyncio.timeout(left_s):
                response = await self._http.get().request(
                    call.method, call.path, content=call.body, headers=call.headers
                )
        except TimeoutError as error:
            raise self._connection.late() from error
        except httpx2.HTTPError as error:
            raise self._connection.failed(error) from error
        return call.answer(response.status_code, response.headers, response.content)

    async def _stream(
        self, batches: AsyncIterator[Numbered[Query]], size: BatchSize, concurrency: int, fields: dict[str, Any]
    ) -> AsyncGenerator[SearchResponse]:
        gate = asyncio.Semaphore(concurrency)

        async def answers(batch: Numbered[Query]) -> list[SearchResponse]:
            async with gate:
                return await self._found(batch, size, fields)

        pending: deque[asyncio.Task[list[SearchResponse]]] = deque()
        try:
            async for batch in batches:
                pending.append(asyncio.create_task(answers(batch)))
                # One more than run at a time, so that the slots stay busy while the caller takes answers.
                if len(pending) > concurrency:
                    for response in await pending.popleft():
                        yield response
            while pending:
                for response in await pending.popleft():
                    yield response
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def _found(self, batch: Numbered[Query], size: BatchSize, fields: dict[str, Any]) -> list[SearchResponse]:
        answers = await self._answers(batch, size, lambda queries, first: batch_call(queries, fields, first=first))
        return [response for answer in answers for response in answer.results]

    async def _answers(self, batch: Numbered[T], size: BatchSize, make: Callable[[list[T], int], Call[M]]) -> list[M]:
        """Give the answers to the calls that `make` makes of items and the first one's position."""
        requests, answers = deque([batch]), list[M]()
        while requests:
            (first, items), *rest = size.cut(requests.popleft())
            requests.extendleft(reversed(rest))
            call = make(items, first)
            try:
                answers.append(await self.call(call))
            except AnswerError as error:
                size.halve(items, call, error)
                requests.appendleft((first, items))
        return answers
