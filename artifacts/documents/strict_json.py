"""The one reader of JSON for documents: lines of a corpus, requests that write, stored documents and the journal.

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
from typing import Any, Final

from lightretriever.artifacts.documents.bounds import MAX_DOCUMENT_BYTES, MAX_NESTING, nesting

_ESCAPED_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_DEEP: Final = f"more than {MAX_NESTING} objects and lists stand in each other; nest it less"


def read_text(line: bytes) -> str:
    """Return the text of a line. Raise ValueError for one that is too long or not UTF-8."""
    if len(line) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"a line has at most {MAX_DOCUMENT_BYTES:,} bytes, this one is longer; cut the document up")
    return line.decode()


def read_object(content: bytes, *, around: int = 0) -> dict[str, Any]:
    """Return the JSON object of a document, or of a request that has one inside `around` objects.

    Raise ValueError for what is not an object, and for what the table above refuses.
    """
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
