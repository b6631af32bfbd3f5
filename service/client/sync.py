"""The synchronous client."""

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic, sleep
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
    numbered,
    put_call,
    put_many_call,
    ready_call,
    reload_call,
    search_call,
)
from lightretriever.service.client.connection import Connection, PerProcess, check_process
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

__all__ = ["SearchClient"]

T = TypeVar("T")
M = TypeVar("M")


class SearchClient:
    """Calls a search service. Thread-safe; `close` it, or use it in a `with` statement.

    `base_url` is the service's address, including a path prefix if it has one. Every request carries `api_key`.
    `timeout_s` bounds a whole call in seconds, including all attempts and the waits between them.

    Every call raises AnswerError for an error answer, UnreachableError without an answer, and ClientError for invalid
    arguments. `retries` governs the retries after temporary failures (429, 502, 503, a broken connection); calls
    that are not safe to repeat have none.
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

    def search(self, request: Query | None = None, /, **fields: Any) -> SearchResponse:
        """Search for a SearchRequest, or for a text with the fields of a SearchRequest as keywords. Without a text,
        list the documents that match `filter`."""
        return self.call(search_call(request, fields))

    def search_batch(self, searches: BatchRequest | Iterable[Query], /, **fields: Any) -> BatchResponse:
        """Make several searches in one request. Keywords are the fields of each search that is a text."""
        return self.call(batch_call(searches, fields))

    def search_many(
        self, queries: Iterable[Query], /, *, batch_size: int = 32, concurrency: int = 4, **fields: Any
    ) -> Generator[SearchResponse]:
        """Give the answers to any number of queries, in their order.

        Reads queries as you take answers: `batch_size` per request, `concurrency` requests at a time, and at most two
        further batches in memory. A batch's error is raised in place of its first answer and names a bad query's
        position among all queries, from 0. Keywords as in `search_batch`; `timeout_s` applies to each request. A batch
        that is too late for the service's deadline is searched in halves, as are those after it.
        """
        check_stream(batch_size, concurrency)
        return self._stream(numbered(queries, batch_size), BatchSize(batch_size), concurrency, fields)

    def encode(self, request: str | EncodeRequest, /, **fields: Any) -> EncodeResponse:
        """Encode a text as a query, from an EncodeRequest or a text with the other fields as keywords."""
        return self.call(encode_call(request, fields))

    def embeddings(self, texts: str | Sequence[str], /, *, model: str = "default") -> EmbeddingsResponse:
        """Encode texts as queries; `model` is a task, `default` the default one."""
        return self.call(embeddings_call(texts, model))

    def document(self, document_id: str, /) -> Document:
        """Give a stored document. AnswerError of kind `document_not_found` if none has this id."""
        return self.call(document_call(document_id))

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
    ) -> DocumentWritten:
        """Write a document of a service that takes changes; needs a key with the scope `admin`.

        A vector and impacts that are not given stay, as long as title and text do; a service with a model encodes
        another text, which may take as long as its `encode_timeout_s`. With `version`, only over that one, without
        retries: AnswerError of kind `version_conflict` for another. `wait`: until searches see it.
        """
        return self.call(put_call(document_id, fields, vector, impacts, version, wait=wait))

    def put_documents(
        self, documents: Iterable[Line], /, *, batch_size: int = 32, wait: bool = False
    ) -> list[DocumentChange]:
        """Write and delete any number of documents in their order; tell what became of each.

        Each is a DocumentLine or a mapping with its fields: `id` and what `put_document` takes, or `delete: True`. No
        model encodes them. A document that can't be written because of the one that is there, such as for another
        version, is `refused` with the `reason`, and the others are written. An error names the document by its id; what
        earlier requests had is written.

        Sends `batch_size` documents per request, and fewer from then on where that is too large or too late for the
        service. `wait` and `timeout_s` apply to each request. One that names a version is made without retries; others
        are safe to repeat, but may tell `changed` or `missing` where the first attempt was not answered.
        """
        check_stream(batch_size, 1)
        size, done = BatchSize(batch_size), list[DocumentChange]()
        for batch in numbered(documents, batch_size):
            for answer in self._answers(batch, size, lambda lines, first: put_many_call(lines, first=first, wait=wait)):
                done += answer.results
        return done

    def delete_document(
        self, document_id: str, /, *, version: str | None = None, wait: bool = False
    ) -> DocumentDeleted:
        """Delete a document of a service that takes changes, without retries; as `put_document`. AnswerError of kind
        `document_not_found` if none has this id."""
        return self.call(delete_call(document_id, version, wait=wait))

    def collections(self) -> CollectionList:
        """List the collections. Each has every route below `/collections/NAME`, which may be part of `base_url`."""
        return self.call(collections_call())

    def info(self) -> Info:
        """Describe the served bundle and the limits of requests."""
        return self.call(info_call())

    def ready(self) -> bool:
        """Tell whether the service is ready; False if it is unreachable. No retries."""
        try:
            self.call(ready_call())
        except UnreachableError:
            return False
        except AnswerError as error:
            if error.passing:
                return False
            raise
        return True

    def reload(self) -> Reloaded:
        """Make the service load its folder's present bundle, which takes time; needs a key with the scope `admin`."""
        return self.call(reload_call())

    def call(self, call: Call[T]) -> T:
        """Make one of the calls of `service.client.calls`, with retries."""
        attempts = self._connection.attempts(once=call.once)
        while True:
            try:
                return self._attempt(call, attempts.begin())
            except ClientError as error:
                wait_s = attempts.wait_s(error)
            sleep(wait_s)

    def close(self) -> None:
        """Close all connections."""
        if (http := self._http.pop()) is not None:
            http.close()

    def __enter__(self) -> Self:
        """Give the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        self.close()

    def _opened(self) -> httpx2.Client:
        return httpx2.Client(**self._connection.http_options())

    def _attempt(self, call: Call[T], left_s: float) -> T:
        """Make one attempt. Each wait is at most `left_s`, and so is the total time, checked after every chunk."""
        until, body = monotonic() + left_s, bytearray()
        try:
            with self._http.get().stream(
                call.method, call.path, content=call.body, headers=call.headers, timeout=left_s
            ) as response:
                for piece in response.iter_bytes():
                    body += piece
                    if monotonic() > until:
                        raise self._connection.late()
        except httpx2.HTTPError as error:
            raise self._connection.failed(error) from error
        return call.answer(response.status_code, response.headers, bytes(body))

    def _stream(
        self, batches: Iterable[Numbered[Query]], size: BatchSize, concurrency: int, fields: dict[str, Any]
    ) -> Generator[SearchResponse]:
        pending: deque[Future[list[SearchResponse]]] = deque()
        process = os.getpid()
        with ThreadPoolExecutor(concurrency, thread_name_prefix="search-many") as pool:
            try:
                for batch in batches:
                    pending.append(pool.submit(self._found, batch, size, fields))
                    # One more than run at a time, so that the threads stay busy while the caller takes answers.
                    if len(pending) > concurrency:
                        yield from pending.popleft().result()
                        check_process(process)
                while pending:
                    yield from pending.popleft().result()
                    check_process(process)
            finally:
                for future in pending:
                    future.cancel()

    def _found(self, batch: Numbered[Query], size: BatchSize, fields: dict[str, Any]) -> list[SearchResponse]:
        answers = self._answers(batch, size, lambda queries, first: batch_call(queries, fields, first=first))
        return [response for answer in answers for response in answer.results]

    def _answers(self, batch: Numbered[T], size: BatchSize, make: Callable[[list[T], int], Call[M]]) -> list[M]:
        """Give the answers to the calls that `make` makes of items and the first one's position."""
        requests, answers = deque([batch]), list[M]()
        while requests:
            (first, items), *rest = size.cut(requests.popleft())
            requests.extendleft(reversed(rest))
            call = make(items, first)
            try:
                answers.append(self.call(call))
            except AnswerError as error:
                size.halve(items, call, error)
                requests.appendleft((first, items))
        return answers
