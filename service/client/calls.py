"""The service's calls without I/O: the request to send, and the function that reads the answer."""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from lightretriever.service.client.errors import AnswerError, ClientError, document_place
from lightretriever.service.errors import BodyTooLargeError, DeadlineError
from lightretriever.service.schemas import (
    BatchRequest,
    BatchResponse,
    CollectionList,
    Document,
    DocumentChanges,
    DocumentDeleted,
    DocumentLine,
    DocumentWrite,
    DocumentWritten,
    EmbeddingsRequest,
    EmbeddingsResponse,
    EncodeRequest,
    EncodeResponse,
    Info,
    Reloaded,
    SearchRequest,
    SearchResponse,
    Status,
)

__all__ = [
    "BatchSize",
    "Call",
    "Line",
    "Numbered",
    "Query",
    "batch_call",
    "check_stream",
    "collections_call",
    "delete_call",
    "document_call",
    "embeddings_call",
    "encode_call",
    "info_call",
    "numbered",
    "numbered_async",
    "put_call",
    "put_many_call",
    "ready_call",
    "reload_call",
    "search_call",
]

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Query = str | SearchRequest
Line = DocumentLine | Mapping[str, Any]
Numbered = tuple[int, list[T]]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request and the reader of its answer. Every call is safe to repeat, unless `once` disables retries.

    `first` is the position of a batch's first search among all searches, `version` what the header `If-Match` names,
    and `ids` are those of the documents that a body of lines has.
    """

    method: str
    path: str
    read: Callable[[bytes], T]
    body: bytes | None = None
    once: bool = False
    first: int = 0
    version: str | None = None
    ids: Sequence[str] = ()

    @property
    def headers(self) -> dict[str, str]:
        """The body's content type, if there is a body, and the version."""
        media = "application/x-ndjson" if self.ids else "application/json"
        declared = {} if self.body is None else {"content-type": media}
        return declared | ({} if self.version is None else {"if-match": f'"{self.version}"'})

    def raw(self) -> "Call[bytes]":
        """Give the same call with its answer's JSON unchanged."""
        return Call(self.method, self.path, bytes, self.body, self.once, self.first, self.version, self.ids)

    def within(self, collection: str | None) -> "Call[T]":
        """Give the same call for a collection; None: for the first. ClientError if the name can't be written."""
        if collection is None:
            return self
        return replace(self, path=f"/collections/{_segment('collection', collection)}{self.path}")

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> T:
        """Read the answer; AnswerError if it is an error."""
        if status != 200:
            raise AnswerError.of_answer(status, headers, body, first=self.first, ids=self.ids)
        return self.read(body)


def search_call(request: Query | None, fields: Mapping[str, Any]) -> Call[SearchResponse]:
    """One search. AnswerError if the request doesn't fit the schema."""
    model = _request(SearchRequest, "query", request, fields)
    return Call("POST", "/search", _reader(SearchResponse), _json(model))


def batch_call(
    searches: BatchRequest | Iterable[Query], fields: Mapping[str, Any], *, first: int = 0
) -> Call[BatchResponse]:
    """Several searches; `fields` apply to each search that is a text. AnswerError names the position of a bad one."""
    if isinstance(searches, BatchRequest):
        requests: Sequence[SearchRequest] = searches.searches
        if fields:
            raise _both("BatchRequest", fields)
    else:
        requests = [
            _request(SearchRequest, "query", search, {} if isinstance(search, SearchRequest) else fields, place)
            for place, search in ((f"searches.{number}", search) for number, search in enumerate(searches, first))
        ]
    written = (_json(request, f"searches.{number}") for number, request in enumerate(requests, first))
    body = b'{"searches":[' + b",".join(written) + b"]}"
    return Call("POST", "/search/batch", _reader(BatchResponse), body, first=first)


def encode_call(request: str | EncodeRequest, fields: Mapping[str, Any]) -> Call[EncodeResponse]:
    """A text to encode. AnswerError if the request doesn't fit the schema."""
    model = _request(EncodeRequest, "text", request, fields)
    return Call("POST", "/encode", _reader(EncodeResponse), _json(model))


def embeddings_call(texts: str | Sequence[str], model: str) -> Call[EmbeddingsResponse]:
    """Query vectors of texts. AnswerError if the request doesn't fit the schema."""
    given = texts if isinstance(texts, str) else list(texts)
    request = _request(EmbeddingsRequest, "input", given, {"model": model})
    return Call("POST", "/v1/embeddings", _reader(EmbeddingsResponse), _json(request))


def document_call(document_id: str) -> Call[Document]:
    """A stored document. ClientError if the id can't be written in UTF-8."""
    return Call("GET", _path(document_id), _reader(Document))


def put_call(
    document_id: str,
    fields: Mapping[str, Any],
    vector: Sequence[float] | None,
    impacts: Mapping[str, int] | None,
    version: str | None,
    *,
    wait: bool,
) -> Call[DocumentWritten]:
    """A document to write. AnswerError if it doesn't fit the schema, ClientError as in `document_call`."""
    body = _json(_request(DocumentWrite, "fields", dict(fields), _encoded({"vector": vector, "impacts": impacts})))
    path = _path(document_id, wait=wait)
    return Call("PUT", path, _reader(DocumentWritten), body, once=version is not None, version=version)


def put_many_call(documents: Iterable[Line], *, first: int = 0, wait: bool = False) -> Call[DocumentChanges]:
    """Documents to write or to delete. AnswerError names the id of one that doesn't fit the schema, or its position
    if it has none, counted from `first`."""
    lines, ids = list[bytes](), list[str]()
    once = False
    for number, document in enumerate(documents, first):
        given = document.id if isinstance(document, DocumentLine) else document.get("id")
        place = document_place(given if isinstance(given, str) and given else str(number))
        line = document if isinstance(document, DocumentLine) else _line(document, place)
        lines.append(_json(line, place))
        ids.append(line.id)
        once = once or line.version is not None
    path = f"/documents{_waiting(wait=wait)}"
    return Call("POST", path, _reader(DocumentChanges), b"\n".join(lines), once=once, ids=ids)


def _line(document: Mapping[str, Any], place: str) -> DocumentLine:
    try:
        return DocumentLine.model_validate({**document, **_encoded(document)})
    except ValidationError as error:
        raise AnswerError.of_request(error, place=place) from error


def _encoded(document: Mapping[str, Any]) -> dict[str, Any]:
    """Give vector and impacts, as far as the document has them, in types that JSON has."""
    found: dict[str, Any] = {}
    if (vector := document.get("vector")) is not None:
        found["vector"] = list(map(float, vector))
    if (impacts := document.get("impacts")) is not None:
        found["impacts"] = {str(term): int(impact) for term, impact in impacts.items()}
    return found


def delete_call(document_id: str, version: str | None, *, wait: bool) -> Call[DocumentDeleted]:
    """A document to delete. ClientError as in `document_call`."""
    return Call("DELETE", _path(document_id, wait=wait), _reader(DocumentDeleted), once=True, version=version)


def _path(document_id: str, *, wait: bool = False) -> str:
    return f"/documents/{_segment('document id', document_id)}{_waiting(wait=wait)}"


def _waiting(*, wait: bool) -> str:
    return "?refresh=wait_for" if wait else ""


def _segment(name: str, text: str) -> str:
    """Write a text, which the error calls by `name`, as a part of a path."""
    try:
        # `quote` keeps dots, and "." and ".." would be path segments.
        return quote(text, safe="").replace(".", "%2E")
    except UnicodeEncodeError as error:
        raise ClientError(
            f"The {name} {text!r} is no text that UTF-8 can express.", remedy="Remove lone surrogates."
        ) from error


def info_call() -> Call[Info]:
    """The served bundle and the limits."""
    return Call("GET", "/info", _reader(Info))


def collections_call() -> Call[CollectionList]:
    """The collections of the process."""
    return Call("GET", "/collections", _reader(CollectionList))


def ready_call() -> Call[Status]:
    """Whether the service is ready."""
    return Call("GET", "/readyz", _reader(Status), once=True)


def reload_call() -> Call[Reloaded]:
    """Load the folder's present bundle."""
    return Call("POST", "/admin/reload", _reader(Reloaded))


def check_stream(batch_size: int, concurrency: int) -> None:
    """Raise ClientError unless both are at least 1."""
    for name, value in (("batch_size", batch_size), ("concurrency", concurrency)):
        if value < 1:
            raise ClientError(f"{name} is {value}.", remedy="Name 1 or more.")


def numbered(items: Iterable[T], size: int) -> Iterator[Numbered[T]]:
    """Split into batches, each with the position of its first item."""
    iterator, first = iter(items), 0
    while batch := list(islice(iterator, size)):
        yield first, batch
        first += len(batch)


async def numbered_async(items: Iterable[T] | AsyncIterable[T], size: int) -> AsyncIterator[Numbered[T]]:
    """Split into batches, each with the position of its first item."""
    if not isinstance(items, AsyncIterable):
        for numbered_batch in numbered(items, size):
            yield numbered_batch
        return
    first, batch = 0, list[T]()
    async for item in items:
        batch.append(item)
        if len(batch) == size:
            yield first, batch
            first, batch = first + size, []
    if batch:
        yield first, batch


class BatchSize:
    """How many searches or documents go into one request. All of a batch share one deadline, counted from its arrival,
    so a request that is too late for it, or too large, is made again in halves, as are those that come after."""

    def __init__(self, most: int) -> None:
        self._most = most

    def cut(self, batch: Numbered[T]) -> list[Numbered[T]]:
        """Cut a batch into requests of the present size, in order."""
        first, items = batch
        return [(first + place, part) for place, part in numbered(items, self._most)]

    def halve(self, items: Sequence[object], call: Call[Any], error: AnswerError) -> None:
        """Halve the size after a call with these items failed. Raises the error if its size was not the cause, if it
        has one item alone, or if it was too late and may not be repeated."""
        too_much = {BodyTooLargeError.kind} | (set() if call.once else {DeadlineError.kind})
        if error.kind not in too_much or len(items) == 1:
            raise error
        self._most = min(self._most, -(-len(items) // 2))


def _request(model: type[M], name: str, value: object, fields: Mapping[str, Any], place: str = "") -> M:
    if isinstance(value, model):
        if fields:
            raise _both(model.__name__, fields)
        return value
    if name in fields:
        raise ClientError(f"The field {name!r} is given twice.", remedy="It is the first argument.")
    try:
        return model.model_validate({name: value, **fields})
    except ValidationError as error:
        raise AnswerError.of_request(error, place=place) from error


def _both(model: str, fields: Mapping[str, Any]) -> ClientError:
    return ClientError(
        f"{model} is given, and fields beside it: {', '.join(fields)}.",
        remedy=f"Name them in the {model}, or give the text in its place.",
    )


def _json(request: BaseModel, place: str = "") -> bytes:
    """Write only the fields that were set, so that an older service accepts requests without new fields."""
    try:
        return request.model_dump_json(include=request.model_fields_set).encode()
    except ValueError as error:
        (field, *_) = filter(lambda name: not _has_json(request, name), sorted(request.model_fields_set))
        raise AnswerError.unsendable(f"{place}.{field}" if place else field) from error


def _has_json(request: BaseModel, name: str) -> bool:
    try:
        request.model_dump_json(include={name})
    except ValueError:
        return False
    return True


def _reader(model: type[M]) -> Callable[[bytes], M]:
    return partial(_read, model)


def _read(model: type[M], body: bytes) -> M:
    """Read an answer, ignoring unknown fields, which a newer service may add."""
    try:
        return model.model_validate_json(body, extra="ignore")
    except ValidationError as error:
        raise AnswerError.unreadable(model.__name__, error) from error
