"""The service's calls without I/O: the request to send, and the function that reads the answer."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from lightretriever.service import schemas
from lightretriever.service.client.errors import AnswerError, ClientError
from lightretriever.service.errors import shortened

T = TypeVar("T", bound=BaseModel)
Fields = Mapping[str, Any]
_MAX_BODY_BYTES: Final = 512 << 10
Query = str | Fields
"""A text, or the fields of a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """A request and the `model` of its answer. Every call is safe to repeat, unless `once` disables retries. `version`
    is what the header `If-Match` names, and `items` the names of the searches or documents of the body."""

    model: type[T]
    method: str = "GET"
    path: str
    body: bytes | None = None
    media: str = "application/json"
    once: bool = False
    version: str | None = None
    items: Sequence[str] = ()

    @property
    def headers(self) -> dict[str, str]:
        """The body's content type, if there is a body, and the version."""
        declared = {} if self.body is None else {"content-type": self.media}
        return declared if self.version is None else {**declared, "if-match": f'"{self.version}"'}

    def within(self, collection: str | None) -> "Call[T]":
        """Return the same call for a collection; None: for the first."""
        return self if collection is None else replace(self, path=f"/collections{_segment(collection)}{self.path}")

    def read(self, body: bytes) -> T:
        """Read the answer, ignoring unknown fields, which a newer service may add. AnswerError if it is no answer."""
        try:
            return self.model.model_validate_json(body, extra="ignore")
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            path, name = ".".join(map(str, first["loc"])) or "body", self.model.__name__
            detail = f"The answer is no {name} of this version: {path}: {first['msg']}. Is this the service?"
            raise AnswerError.unexpected(200, detail) from error


INFO: Final = Call(path="/info", model=schemas.Info)


def search(query: str | None, fields: Fields) -> Call[schemas.SearchResponse]:
    """One search."""
    return post("/search", schemas.SearchResponse, {**({} if query is None else {"query": query}), **fields})


def batch(queries: Iterable[Query], fields: Fields, *, first: int = 0) -> Call[schemas.BatchResponse]:
    """Several searches; `fields` apply to each that is a text. Errors count them from `first`."""
    searches = [{"query": query, **fields} if isinstance(query, str) else query for query in queries]
    items = [f"searches.{number}" for number in range(first, first + len(searches))]
    return post("/search/batch", schemas.BatchResponse, {"searches": searches}, items=items)


def batches(queries: Iterable[Query], size: int, fields: Fields) -> Iterator[Call[schemas.BatchResponse]]:
    """Any number of searches, `size` a call. ClientError if it is below 1."""
    check_size("batch_size", size)
    iterator, first = iter(queries), 0
    while part := list(islice(iterator, size)):
        yield batch(part, fields, first=first)
        first += len(part)


def document(document_id: str) -> Call[schemas.Document]:
    """A stored document."""
    return Call(path=_documents(_segment(document_id)), model=schemas.Document)


def put(document_id: str, written: Fields, version: str | None, *, wait: bool) -> Call[schemas.DocumentChange]:
    """A document to write: `fields`, `vector`, `impacts`."""
    name = f"documents.{shortened(str(document_id))}"
    return Call(
        method="PUT",
        path=_documents(_segment(document_id), wait=wait),
        model=schemas.DocumentChange,
        body=_json({name: value for name, value in written.items() if value is not None}, f"{name}."),
        once=version is not None,
        version=version,
        items=[name],
    )


def put_many(documents: Iterable[Fields], batch_size: int, *, wait: bool) -> Iterator[Call[schemas.DocumentChanges]]:
    """Documents to write or to delete, at most `batch_size` a call, and 512 KiB unless one alone has more. ClientError
    if `batch_size` is below 1."""
    check_size("batch_size", batch_size)
    lines, items, size, once = list[bytes](), list[str](), 0, False
    for number, written in enumerate(documents):
        name = f"documents.{shortened(str(written.get('id', number)))}"
        line = _json(written, f"{name}.")
        if lines and (len(lines) == batch_size or size + len(line) > _MAX_BODY_BYTES):
            yield _lines(lines, items, once=once, wait=wait)
            lines, items, size, once = [], [], 0, False
        lines.append(line)
        items.append(name)
        size, once = size + len(line), once or written.get("version") is not None
    if lines:
        yield _lines(lines, items, once=once, wait=wait)


def _lines(lines: list[bytes], items: list[str], *, once: bool, wait: bool) -> Call[schemas.DocumentChanges]:
    path, body, media = _documents(wait=wait), b"\n".join(lines), "application/x-ndjson"
    return Call(method="POST", path=path, model=schemas.DocumentChanges, body=body, media=media, once=once, items=items)


def delete(document_id: str, version: str | None, *, wait: bool) -> Call[schemas.DocumentChange]:
    """A document to delete."""
    path = _documents(_segment(document_id), wait=wait)
    return Call(method="DELETE", path=path, model=schemas.DocumentChange, once=True, version=version)


def post(path: str, model: type[T], content: Fields, *, items: Sequence[str] = ()) -> Call[T]:
    """Content to send as JSON."""
    return Call(method="POST", path=path, model=model, body=_json(content), items=items)


def check_size(name: str, size: int) -> None:
    """Raise ClientError unless a size is at least 1."""
    if size < 1:
        raise ClientError(f"{name} is {size}.", remedy="Name 1 or more.")


def _documents(segment: str = "", *, wait: bool = False) -> str:
    return f"/documents{segment}{'?refresh=wait_for' if wait else ''}"


def _segment(text: str) -> str:
    """Write an id or a name as a part of a path."""
    try:
        return f"/{quote(text.encode(), safe='').replace('.', '%2E')}"  # "." and ".." would be path segments
    except (AttributeError, UnicodeEncodeError) as error:
        remedy = "Write it as a text, without lone surrogates."
        raise ClientError(f"The id {text!r} ({type(text).__name__}) is no UTF-8 text.", remedy=remedy) from error


def _json(content: object, root: str = "") -> bytes:
    """Write JSON; numbers and arrays of NumPy and the like are numbers and lists. ClientError names the part of
    `content`, which is at `root`, that can't be written."""
    written = _written(content)
    if written is None:
        path, wrong = _unwritable(content, "", 100)
        raise ClientError(
            f"{root}{path or 'body'}: {shortened(wrong)} can't be written as JSON.",
            remedy="Send finite numbers, texts without lone surrogates, lists, and mappings with texts as names.",
        )
    return written


def _written(content: object) -> bytes | None:
    try:
        return json.dumps(
            content, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=lambda value: value.tolist()
        ).encode()
    except (TypeError, ValueError, AttributeError, RecursionError):
        return None


def _unwritable(value: Any, path: str, depth: int) -> tuple[str, str]:
    if not depth:
        return path[:100], "what is nested so deeply"
    value = value.tolist() if hasattr(value, "tolist") else value
    named = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list | tuple) else {}
    for name, part in named.items():
        if _written({name: None}) is None:
            return path, f"the name {name!a}"
        if _written(part) is None:
            return _unwritable(part, f"{path}.{name}" if path else str(name), depth - 1)
    return path, f"{value!a} ({type(value).__name__})"
