"""The synchronous client: the calls of the one for asyncio, without an event loop."""

import time
from collections.abc import Callable, Coroutine, Generator, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx2

from lightretriever.service import schemas
from lightretriever.service.client import calls
from lightretriever.service.client.asynchronous import AsyncSearchClient
from lightretriever.service.client.calls import Call, Query
from lightretriever.service.client.connection import Connection
from lightretriever.service.client.streams import answers

P = ParamSpec("P")
R = TypeVar("R")


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """Make a method of one for asyncio. All that it awaits in this client blocks, so that it ends in its first step."""

    @wraps(method)
    def call(client: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            method(client, *arguments, **named).send(None)
        except StopIteration as end:
            result: R = end.value
            return result
        raise RuntimeError("a call of the synchronous client waits for an event loop")

    return call


class SearchClient(Connection[httpx2.Client]):
    """Calls a search service. Threads may share it. `close` it, or use it in a `with` statement.

    `base_url` is the service's address, with its path prefix if it has one. `timeout_s` bounds a whole call, including
    all attempts and the waits between them. Every call raises AnswerError for an error answer, UnreachableError without
    an answer, and ClientError for invalid arguments. After a temporary failure (429, 502, 503, a broken connection) a
    call is made again, up to `attempts` times in all; calls that are not safe to repeat are made once. A forked process
    opens its own connections.
    """

    _kind = httpx2.Client

    search = _blocking(AsyncSearchClient.search)
    search_batch = _blocking(AsyncSearchClient.search_batch)
    encode = _blocking(AsyncSearchClient.encode)
    document = _blocking(AsyncSearchClient.document)
    put_document = _blocking(AsyncSearchClient.put_document)
    put_documents = _blocking(AsyncSearchClient.put_documents)
    delete_document = _blocking(AsyncSearchClient.delete_document)
    collections = _blocking(AsyncSearchClient.collections)
    info = _blocking(AsyncSearchClient.info)
    ready = _blocking(AsyncSearchClient.ready)
    reload = _blocking(AsyncSearchClient.reload)
    call = _blocking(AsyncSearchClient.call)
    send = _blocking(AsyncSearchClient.send)

    def search_many(
        self, queries: Iterable[Query], /, *, batch_size: int = 32, concurrency: int = 4, **fields: Any
    ) -> Generator[schemas.SearchResponse]:
        """Yield the answers to any number of queries, as `AsyncSearchClient.search_many` does."""
        return answers(self.call, calls.batches(queries, batch_size, fields), concurrency)

    def close(self) -> None:
        """Close all connections."""
        if (http := self._pop()) is not None:
            http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _receive(
        self, call: Call[Any], options: dict[str, Any], deadline: float
    ) -> tuple[httpx2.Response, bytearray]:
        body = bytearray()  # httpx2 bounds each wait, and `_check` their sum
        with self._http().stream(call.method, call.path, **options) as response:
            for piece in response.iter_bytes():
                body += piece
                self._check(len(body), deadline)
        return response, body

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)
