"""Declared fields of the documents, by which a search can be filtered and counted: their kinds and their values.

keyword   a text, or a list of texts; true and false are the texts "true" and "false"
number    a number, or a list of numbers, as float64
date      an ISO 8601 date or time, or a list of them, to the millisecond; without a zone it is UTC

A document that lacks a field, or has null there, has no value in it.

The names of a document, by which a query may call it, are indexed as keywords of a field without a name: the title, and
the title's head, which ends before `:`, ` – `, ` - ` or ` (`.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import Field

from lightretriever.artifacts.documents.bounds import MAX_FIELD_CHARS, MAX_ID_BYTES, MAX_KEYWORD_BYTES

FieldKind = Literal["keyword", "number", "date"]
# Python takes any sign before the time, so that 2024-05-31+02:00 is two in the morning, and a week for its first day.
_DATE: Final = re.compile(r"[0-9]{4}-?([0-9]{2}-?[0-9]{2}|W[0-9]{2}-?[0-9])([T ].+)?")
_HEAD_END: Final = re.compile(r":| [–-] | \(")
NAMES: Final = ""
"""The field of the names; no declared field is called so."""

FieldName = Annotated[str, Field(min_length=1, max_length=MAX_FIELD_CHARS, pattern=r"^[^\x00-\x1f]+$")]


class Order(NamedTuple):
    """An order of documents by a declared field of a kind, ascending unless `descending`. Of several values the first
    in the order counts, and documents without a value come last."""

    field: str
    kind: FieldKind
    descending: bool


def indexed_values(document: Mapping[str, Any], fields: Mapping[str, FieldKind]) -> list[tuple[str, str]]:
    """The values of a document's declared fields, as Java reads them, each with the name of its field. Raises
    ValueError that names the field and a value that is not of its kind."""
    values: list[tuple[str, str]] = []
    for name, kind in fields.items():
        value = _names_of(document.get("title")) if name == NAMES else document.get(name)
        for item in value if isinstance(value, list) else [] if value is None else [value]:
            try:
                values.append((name, _AS_TEXT[kind](item)))
            except ValueError as error:
                raise ValueError(f'field "{name}": {error}') from error
    return values


def name_of(text: str) -> str:
    """The name that a text is: in NFKC and lower case, with one blank between words. "" for one without a letter, or
    that is longer than an id."""
    name = " ".join(unicodedata.normalize("NFKC", text).lower().split())
    return name if any(map(str.isalpha, name)) and len(name.encode()) <= MAX_ID_BYTES else ""


def _names_of(title: object) -> list[str]:
    if not isinstance(title, str):
        return []
    return list(filter(None, dict.fromkeys([name_of(title), name_of(_HEAD_END.split(title, maxsplit=1)[0])])))


def keyword(value: object) -> str:
    """The text of a keyword. Raises ValueError for what is none."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        raise ValueError(f"expected a text, found {value!r:.80}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{value!r:.80} is not valid Unicode") from error
    if size > MAX_KEYWORD_BYTES:
        raise ValueError(f"a keyword has at most {MAX_KEYWORD_BYTES:,} bytes, this one has {size:,}")
    return value


def number(value: object) -> float:
    """A finite number. Raises ValueError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, found {value!r:.80}")
    with suppress(OverflowError):
        if math.isfinite(result := float(value)):
            return result + 0.0  # -0.0 is 0.0
    raise ValueError(f"expected a finite number, found {value!r:.80}")


def milliseconds(value: object) -> int:
    """Milliseconds since 1970 of an ISO 8601 date or time. Raises ValueError for what is none."""
    try:
        if not isinstance(value, str) or not _DATE.fullmatch(value):
            raise ValueError
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError(f"expected a date such as 2024-05-31 or 2024-05-31T12:00:00Z, found {value!r:.80}") from None
    zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def last_millisecond(value: object) -> int:
    """The last millisecond that an ISO 8601 date or time names: of a date without a time, that of the whole day."""
    first = milliseconds(value)
    with suppress(ValueError):  # with a time
        date.fromisoformat(str(value))
        return first + 86_400_000 - 1
    return first


_AS_TEXT: Final[Mapping[FieldKind, Callable[[object], str]]] = {
    "keyword": keyword,
    "number": lambda value: repr(number(value)),
    "date": lambda value: str(milliseconds(value)),
}
