"""A document: its text, and how it is read from JSON."""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lightretriever.artifacts.documents.bounds import (
    MAX_DOCUMENT_BYTES,
    MAX_NESTING,
    check_document,
    check_id,
    check_nesting,
    new_names,
)
from lightretriever.artifacts.documents.fields import FieldKind, indexed_values
from lightretriever.artifacts.tokens.tokenizer import document_text

__all__ = ["Document", "document_of", "read_document", "read_object", "read_query", "read_text"]

_RENAME: Final = "jq -c '{_id: .id, text: .contents}'"


@dataclass(frozen=True, slots=True)
class Document:
    """One corpus line: `raw` is the line's JSON re-serialised (UTF-8), with all its fields. `names` are those of the
    fields, where the document was read from a file."""

    id: str
    title: str
    text: str
    raw: bytes
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def full_text(self) -> str:
        """The text that models read: title and text."""
        return document_text(self.title, self.text)


def read_document(line: bytes, fields: Mapping[str, FieldKind], names: set[str]) -> Document:
    """The document of a line, as `document_of` makes it. Raises ValueError for a bad line."""
    return document_of(read_object(line), fields, names)


def document_of(record: dict[str, Any], fields: Mapping[str, FieldKind], names: set[str]) -> Document:
    """A document of a corpus whose fields have `names`, which grow. Raises ValueError for one that is out of bounds, or
    has no text."""
    document_id = _required_id(record)
    title, text = _string(record, "title", default=""), _string(record, "text")
    if not document_text(title, text):
        raise ValueError(f'document "{document_id}" is empty: neither title nor text has a character')
    indexed_values(record, fields)
    raw = _serialised(record)
    new = new_names(check_document(record, len(raw)), names)
    names |= new
    return Document(document_id, title, text, raw, tuple(record))


def read_query(line: bytes) -> tuple[str, str]:
    """The id and the text of a query's line. Raises ValueError for a bad line."""
    record = read_object(line)
    query_id, text = _required_id(record), _string(record, "text")
    _serialised(record)
    return query_id, text


def read_text(line: bytes) -> str:
    """The text of a line. Raises ValueError for one that is too long or not UTF-8."""
    if len(line) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"a line has at most {MAX_DOCUMENT_BYTES:,} bytes, this one is longer; cut the document up")
    return line.decode()


def read_object(line: bytes) -> dict[str, Any]:
    """The JSON object of a line. Raises ValueError for what is none, and for what can't be stored and served: a key
    that stands twice, too deep nesting, numbers beyond 64 bits, halves of surrogate pairs."""
    try:
        text = read_text(line)
        record = json.loads(
            text, parse_constant=_refuse, parse_float=_finite, parse_int=_int64, object_pairs_hook=_unique
        )
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(f"more than {MAX_NESTING} objects and lists stand in each other; nest it less") from error
    check_nesting(record)
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found {type(record).__name__}")
    return record


def _serialised(record: dict[str, Any]) -> bytes:
    try:
        return json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate ({error.object[error.start]!r}) is no valid text") from error


def _required_id(record: dict[str, Any]) -> str:
    value = record.get("_id")
    if isinstance(value, int) and not isinstance(value, bool):
        value = record["_id"] = str(value)
    if value is None and (other := next((key for key in ("id", "docid", "doc_id") if key in record), None)):
        raise ValueError(f'"_id" is missing, but there is "{other}": rename it to "_id" ({_RENAME})')
    return sys.intern(check_id(value))


def _string(record: dict[str, Any], key: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if value is None and default is not None:
        return default
    if value is None and key == "text" and "contents" in record:
        raise ValueError(f'"text" is missing, but there is "contents": rename it to "text" ({_RENAME})')
    if value is None:
        raise ValueError(f'"{key}" is missing or null')
    if not isinstance(value, str):
        raise ValueError(f'"{key}" must be a string, found {value!r:.80}')
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f'the key "{next(key for key in keys if keys.count(key) > 1):.80}" stands twice')
    return record


def _refuse(constant: str) -> float:
    raise ValueError(f"not JSON: {constant} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits[:30])


def _int64(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**64:
        raise ValueError(f"not JSON: {digits[:30]} doesn't fit into 64 bits; write it as a string")
    return number
