"""The client for asyncio."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from time import monotonic
from typing import Any, Self, TypeVar

import httpx2
from pydantic import BaseModel

from lightretriever.service import schemas
from lightretriever.service.client import calls
from lightretriever.service.client.calls import Call, Fields, Query
from lightretriever.service.client.connection import Connection
from lightretriever.service.client.errors import AnswerError, ClientError

T = TypeVar("T", bound=BaseModel)


class AsyncSearchClient(Connection[httpx2.AsyncClient]):
    """Calls a search service. Use it in one event loop. `aclose` it, or use it in an `async with` statement.

    `base_url` has the path prefix of the service, if any. `timeout_s` bounds a whole call: up to `attempts` attempts
    after temporary failures (429, 502, 503, a broken connection), and the waits between them. Calls raise AnswerError
    for an error answer, UnreachableError without an answer, ClientError for invalid arguments.
    """

    _kind = httpx2.AsyncClient

    async def search(self, query: str | None = None, /, **fields: Any) -> schemas.SearchResponse:
        """Search for a text, with the fields of a request as keywords. `like` is the id of a document in place of a
        text; without both, list the documents that match `filter`."""
        return await self.call(calls.search(query, fields))

    async def search_batch(self, queries: Iterable[Query], /, **fields: Any) -> schemas.BatchResponse:
        """Make several searches in one request. Keywords are the fields of each search that is a text."""
        return await self.call(calls.batch(queries, fields))

    async def search_many(
        self, queries: Iterable[Query], /, *, batch_size: int = 32, **fields: Any
    ) -> AsyncGenerator[schemas.SearchResponse]:
        """Yield the answers to any number of queries in order, `batch_size` per request, each within `timeout_s`.
        Keywords as in `search_batch`. An error names a bad query's position among all queries."""
        for call in calls.batches(queries, batch_size, fields):
            batch = await self.call(call)
            for response in batch.results:
                yield response

    async def encode(self, text: str, /, **fields: Any) -> schemas.EncodeResponse:
        """Encode a text as a query."""
        return await self.call(calls.post("/encode", schemas.EncodeResponse, {"text": text, **fields}))

    async def document(self, document_id: str, /) -> schemas.Document:
        """Return a stored document. AnswerError of kind `document_not_found` if none has this id."""
        return await self.call(calls.document(document_id))

    async def put_document(
        self,
        document_id: str,
        fields: Fields,
        /,
        *,
        vector: Sequence[float] | None = None,
        impacts: Fields | None = None,
        version: str | None = None,
        wait: bool = False,
    ) -> schemas.DocumentChange:
        """Write a document of a service that takes changes; needs a key with the scope `admin`. A missing vector or
        impacts stay, as long as title and text do; a service with a model encodes another text. With `version`, only
        over that one, without retries: AnswerError `version_conflict` for another. `wait`: until searches see it."""
        written = {"fields": fields, "vector": vector, "impacts": impacts}
        return await self.call(calls.put(document_id, written, version, wait=wait))

    async def put_documents(
        self, documents: Iterable[Fields], /, *, batch_size: int = 32, wait: bool = False
    ) -> list[schemas.DocumentChange]:
        """Write and delete any number of documents in their order; return what became of each: `refused` with the
        `reason` where the stored document prevents it. Each is a mapping: `id` and what `put_document` takes, or
        `delete: True`. An error names the document; what earlier requests had is written. A request has at most
        `batch_size` documents and 512 KiB, unless one alone has more."""
        batches = calls.put_many(documents, batch_size, wait=wait)
        return [change for call in batches for change in (await self.call(call)).results]

    async def delete_document(
        self, document_id: str, /, *, version: str | None = None, wait: bool = False
    ) -> schemas.DocumentChange:
        """Delete a document, without retries; as `put_document`. AnswerError `document_not_found` if there is none."""
        return await self.call(calls.delete(document_id, version, wait=wait))

    async def collections(self) -> schemas.CollectionList:
        """List the collections. Each has every route below `/collections/NAME`, which may be part of `base_url`."""
        return await self.call(Call(path="/collections", model=schemas.CollectionList))

    async def info(self) -> schemas.Info:
        """Describe the served bundle and the limits of requests."""
        return await self.call(calls.INFO)

    async def ready(self) -> bool:
        """True if the service is ready; False if it is unreachable. No retries."""
        try:
            await self.call(Call(path="/readyz", model=schemas.Status, once=True))
        except ClientError as error:
            if not error.passing:
                raise
            return False
        return True

    async def reload(self) -> schemas.Reloaded:
        """Make the service load its folder's present bundle, which takes time; needs a key with the scope `admin`."""
        return await self.call(Call(method="POST", path="/admin/reload", model=schemas.Reloaded))

    async def call(self, call: Call[T]) -> T:
        """Make one of the calls of `service.client.calls`."""
        return call.read(await self.send(call))

    async def send(self, call: Call[Any]) -> bytes:
        """Return the JSON of the answer to a call, with retries."""
        deadline, attempts = monotonic() + self._timeout_s, 0
        while True:
            attempts += 1
            try:
                return await self._attempt(call, deadline)
            except ClientError as error:
                pause_s = self._pause_s(error, attempts, deadline, once=call.once)
            await asyncio.sleep(pause_s)

    async def aclose(self) -> None:
        """Close all connections."""
        if (http := self._pop()) is not None:
            await http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _attempt(self, call: Call[Any], deadline: float) -> bytes:
        left_s, body, http = max(0.001, deadline - monotonic()), bytearray(), self._http()
        options: dict[str, Any] = {"content": call.body, "headers": call.headers, "timeout": left_s}
        try:
            async with asyncio.timeout(left_s), http.stream(call.method, call.path, **options) as response:
                async for piece in response.aiter_bytes():
                    body += piece
                    self._check(len(body), deadline)
        except (TimeoutError, httpx2.HTTPError) as error:
            raise self._failed(error) from error
        if response.status_code != 200:
            raise AnswerError.of_answer(response.status_code, response.headers, bytes(body), call.items)
        return bytes(body)
