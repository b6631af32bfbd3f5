"""A document, and the one reader of its JSON: lines of a corpus, requests that write, stored documents and the journal.

Other readers of JSON change a value without a word. This one refuses it:

| refused | what other readers make of it |
|---|---|
| a key that stands twice in an object | the last value |
| a whole number beyond 64 bits | a rounded number, or one that cannot be written again |
| a number beyond float64, NaN, Infinity | infinity, or null |
| half of a surrogate pair | a text that is not Unicode |
| more than MAX_NESTING objects and lists in each other | a value that cannot be written again |
| more than MAX_DOCUMENT_BYTES | a value that Java cannot hold several times over |
| bytes that are not UTF-8, or not JSON | an error |
"""

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lightretriever.artifacts.documents.bounds import MAX_DOCUMENT_BYTES, MAX_NESTING, check_id, nesting, new_names
from lightretriever.artifacts.documents.fields import FieldKind, indexed_values
from lightretriever.artifacts.tokens.tokenizer import document_text

_ESCAPED_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_DEEP: Final = f"more than {MAX_NESTING} objects and lists stand in each other; nest it less"
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
    value = record.get(key)
    if value is None and default is not None:
        return default
    if value is None:
        other = key == "text" and "contents" in record
        hint = f', but there is "contents": rename it to "text" ({_RENAME})' if other else " or null"
        raise ValueError(f'"{key}" is missing{hint}')
    if not isinstance(value, str):
        raise ValueError(f'"{key}" must be a string, found {value!r:.80}')
    return value


def read_text(line: bytes) -> str:
    """Return the text of a line. Raise ValueError for one that is too long or not UTF-8."""
    if len(line) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"a line has at most {MAX_DOCUMENT_BYTES:,} bytes, this one is longer; cut the document up")
    return line.decode()


def read_object(content: bytes, *, around: int = 0) -> dict[str, Any]:
    """Return the JSON object of a document, or of a request that has one inside `around` objects. Raise ValueError for
    what is not an object, and for what the table above refuses."""
    try:
        text = read_text(content)
        record = json.loads(
            text, parse_constant=_refuse, parse_float=_finite, parse_int=_int64, object_pairs_hook=_unique
        )
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError(_DEEP) from error
    if nesting(record, MAX_NESTING + around) > MAX_NESTING + around:
        raise ValueError(_DEEP)
    if _ESCAPED_SURROGATE.search(text):
        serialised(record)
    if not isinstance(record, dict):
        raise ValueError(f"expected a JSON object, found {type(record).__name__}")
    return record


def serialised(value: object) -> bytes:
    """Return a value as JSON in UTF-8. Raise ValueError for half of a surrogate pair, NaN and infinity."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a lone surrogate ({error.object[error.start]!r}) is no valid text") from error


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
