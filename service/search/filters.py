"""Read the filters of a request, and the ranges of its facets.

Conditions are checked against the bundle's declared fields, and written in the form that Java's DocumentFilter reads.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from typing import Any, Final

from lightretriever.artifacts.documents.fields import FieldKind, keyword, last_millisecond, milliseconds, number
from lightretriever.service.errors import FieldError, InvalidRequestError, shortened
from lightretriever.service.schemas import And, Condition, Filter, Not, Or, Plain

MAX_VALUES: Final = 1000
"""Most values in all conditions of a filter."""

MAX_DEPTH: Final = 20
"""Deepest nesting of conditions."""

MAX_EDGES: Final = 100
"""Most edges of ranges in a request."""

_LONGEST_LIST: Final = 300
_PARSE: Final[Mapping[FieldKind, Callable[[object], Any]]] = {
    "keyword": keyword,
    "number": number,
    "date": milliseconds,
}


def read_filter(condition: Filter, fields: Mapping[str, FieldKind]) -> tuple[tuple[str, ...], list[FieldError]]:
    """Return a filter in the index's form, and its errors, by their path in the request."""
    errors: list[FieldError] = []
    texts = tuple(_texts(condition, fields, "filter", 0, errors))
    values = count_values(condition)
    if values > MAX_VALUES:
        errors.append(FieldError("filter", f"a filter has at most {MAX_VALUES} values", values))
    return texts, errors


def listed(names: Iterable[str]) -> str:
    """Return the names of fields or tasks for a message, which must stay small."""
    return shortened(", ".join(names), _LONGEST_LIST) or "none"


def all_of(*conditions: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Return the condition that holds where all of these do; None holds everywhere."""
    parts = [condition for condition in conditions if condition is not None]
    if len(parts) < 2:
        return parts[0] if parts else None
    return ("and", str(len(parts)), *chain.from_iterable(parts))


def count_values(condition: Filter) -> int:
    """Count the values in all conditions of a filter; a condition without a list has one."""
    values, inside = 0, [condition]
    while inside:
        part = inside.pop()
        if isinstance(part, Condition):
            values += 1 if part.in_ is None else len(part.in_)
        else:
            inside.extend(_parts(part).values())
    return values


def _parts(condition: And | Or | Not) -> dict[str, Filter]:
    if isinstance(condition, Not):
        return {"not": condition.not_}
    name, parts = ("and", condition.and_) if isinstance(condition, And) else ("or", condition.or_)
    return {f"{name}.{index}": part for index, part in enumerate(parts)}


def _texts(
    condition: Filter, fields: Mapping[str, FieldKind], path: str, depth: int, errors: list[FieldError]
) -> Iterator[str]:
    if depth > MAX_DEPTH:
        errors.append(FieldError(path, f"at most {MAX_DEPTH} conditions may stand around a condition"))
    elif isinstance(condition, Condition):
        try:
            yield from _condition(condition, fields)
        except InvalidRequestError as wrong:
            errors.extend(wrong.within(path).errors)
    else:
        parts = _parts(condition)
        yield from (
            ["not"] if isinstance(condition, Not) else ["and" if isinstance(condition, And) else "or", str(len(parts))]
        )
        for key, part in parts.items():
            yield from _texts(part, fields, f"{path}.{key}", depth + 1, errors)


def _condition(condition: Condition, fields: Mapping[str, FieldKind]) -> list[str]:
    kind = fields.get(condition.field)
    if kind is None:
        message = f"documents can't be filtered by this field; by these they can: {listed(fields)}"
        raise InvalidRequestError.at("field", message, condition.field)
    if condition.exists is not None:
        return ["exists", condition.field] if condition.exists else ["not", "exists", condition.field]
    if condition.eq is not None or condition.in_ is not None:
        name, values = ("eq", [condition.eq]) if condition.in_ is None else ("in", condition.in_)
        if kind != "date":
            read = [str(_parsed(kind, name, value)) for value in values]
            return ["keyword" if kind == "keyword" else "numbers", condition.field, str(len(read)), *read]
        days = [(_parsed(kind, name, value), _parsed(kind, name, value, last=True)) for value in values]
        ranges = [text for first, last in days for text in (kind, condition.field, str(first), str(last))]
        return ranges if len(days) == 1 else ["or", str(len(days)), *ranges]
    for name in ("gt", "gte", "lt", "lte") if kind == "keyword" else ():
        if (value := getattr(condition, name)) is not None:
            raise InvalidRequestError.at(name, "a field of the kind keyword has no order; use eq or in", value)
    low, high = (_bound(condition, kind, *names) for names in (("gte", "gt"), ("lte", "lt")))
    return [kind, condition.field, _text(kind, low, -math.inf), _text(kind, high, math.inf)]


def _bound(condition: Condition, kind: FieldKind, closed: str, opened: str) -> float | int | None:
    if (value := getattr(condition, closed)) is not None:
        bound: float | int = _parsed(kind, closed, value, last=closed == "lte")
        return bound
    if (value := getattr(condition, opened)) is None:
        return None
    up = opened == "gt"
    beyond: float | int = _parsed(kind, opened, value, last=up)
    return beyond + (1 if up else -1) if kind == "date" else math.nextafter(beyond, math.inf if up else -math.inf)


def _text(kind: FieldKind, value: float | int | None, default: float) -> str:
    if value is not None and math.isfinite(value):
        return str(value)
    if kind == "date":
        return str(2**63 - 1 if default > 0 else -(2**63))
    return "Infinity" if (default if value is None else value) > 0 else "-Infinity"


def _parsed(kind: FieldKind, name: str, value: object, *, last: bool = False) -> Any:
    """Read a value; of a date without a time the first, or the `last`, millisecond."""
    try:
        return last_millisecond(value) if last and kind == "date" else _PARSE[kind](value)
    except ValueError as error:
        raise InvalidRequestError.at(name, f"{error}", value) from error


Ranges = Sequence[tuple[Plain, tuple[str, ...]]]
"""The n + 1 ranges that n edges make: of each, `gte` and `lt` as the request spells them, and its condition."""


def read_ranges(
    facet_ranges: Mapping[str, Sequence[Any]], fields: Mapping[str, FieldKind]
) -> tuple[dict[str, Ranges], list[FieldError]]:
    """Return the ranges of `facet_ranges` by field, and their errors."""
    ranges: dict[str, Ranges] = {}
    errors: list[FieldError] = []
    if (together := sum(map(len, facet_ranges.values()))) > MAX_EDGES:
        return ranges, [FieldError("facet_ranges", f"at most {MAX_EDGES} edges are possible", together)]
    for name, edges in facet_ranges.items():
        path, kind = f"facet_ranges.{shortened(name)}", fields.get(name)
        if kind not in ("number", "date"):
            numbers = listed(field for field, of in fields.items() if of != "keyword")
            errors.append(FieldError(path, f"only declared numbers and dates are counted in ranges: {numbers}"))
            continue
        try:
            read = [_PARSE[kind](edge) for edge in edges]
        except ValueError as error:
            errors.append(FieldError(path, f"{error}"))
            continue
        if not read or any(high <= low for low, high in pairwise(read)):
            errors.append(FieldError(path, "expected one edge or more, each above the one before"))
            continue
        ranges[name] = of_field = []
        for low, high in pairwise([None, *edges, None]):
            bounds = {key: edge for key, edge in (("gte", low), ("lt", high)) if edge is not None}
            of_field.append((bounds, tuple(_condition(Condition.model_validate({"field": name, **bounds}), fields))))
    return ranges, errors


def values_of(kind: FieldKind, value: object) -> Iterator[Any]:
    """Return the values of a declared field, as a document has them in JSON: texts, numbers, milliseconds since
    1970."""
    for item in value if isinstance(value, list) else [] if value is None else [value]:
        with suppress(ValueError):  # an older version of the writer let it pass
            yield _PARSE[kind](item)
