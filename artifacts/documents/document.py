"""A document: its text, and how it is read from JSON."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lightretriever.artifacts.documents.bounds import MAX_DOCUMENT_BYTES, check_id, new_names
from lightretriever.artifacts.documents.fields import FieldKind, indexed_values
from lightretriever.artifacts.documents.strict_json import read_object, serialised
from lightretriever.artifacts.tokens.tokenizer import document_text

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
    """Return the document of a line, as `document_of` makes it. Raise ValueError for a bad line."""
    return document_of(read_object(line), fields, names)


def document_of(record: dict[str, Any], fields: Mapping[str, FieldKind], names: set[str]) -> Document:
    """Return the document of a JSON object that `read_object` read, or that is nested no deeper. `names` are those of
    the fields of the corpus, and grow. Raise ValueError for a document that is out of bounds, or has no text."""
    document_id = _required_id(record)
    title, text = _string(record, "title", default=""), _string(record, "text")
    if not document_text(title, text):
        raise ValueError(f'document "{document_id}" is empty: neither title nor text has a character')
    indexed_values(record, fields)
    raw = serialised(record)
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"a document has at most {MAX_DOCUMENT_BYTES:,} bytes, this one has {len(raw):,}; cut it up")
    names |= new_names(record, names)
    return Document(document_id, title, text, raw, tuple(record))


def stored_object(raw: bytes) -> dict[str, Any]:
    """Return the JSON object of a document as an index or a journal has it, with all its fields. Raise ValueError for
    one that `document_of` does not make."""
    record = read_object(raw)
    check_id(record.get("_id"))
    return record


def read_query(line: bytes) -> tuple[str, str]:
    """Return the id and the text of a query's line. Raise ValueError for a bad line."""
    record = read_object(line)
    return _required_id(record), _string(record, "text")


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
