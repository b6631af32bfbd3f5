"""Facets: how many documents have which values of a declared field, or values in which range."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from lightretriever.artifacts.corpus.fields import FieldKind, milliseconds, number
from lightretriever.service.errors import FieldError, shortened
from lightretriever.service.schemas.filters import Condition
from lightretriever.service.search.answer import Plain
from lightretriever.service.search.filters import read_filter
from lightretriever.service.search.ranking import values_of

__all__ = ["MAX_EDGES", "FieldRanges", "count_in_ranges", "read_ranges"]

MAX_EDGES: Final = 100
"""Most edges of ranges in a request."""

_LONGEST_LIST: Final = 300
_READ: Final[Mapping[FieldKind, Callable[[object], Any]]] = {"number": number, "date": milliseconds}


@dataclass(frozen=True, slots=True)
class FieldRanges:
    """The n + 1 ranges of a field that n edges make. edges: (n,) numbers, or milliseconds since 1970. bounds: of each
    range `gte` and `lt` as the request spells them. conditions: of each range, as the backends read it."""

    kind: FieldKind
    edges: tuple[float, ...]
    bounds: tuple[Plain, ...]
    conditions: tuple[tuple[str, ...], ...]

    def counted(self, counts: Iterable[int]) -> list[Plain]:
        """Give the number of documents of each range, as `RangeCount`."""
        return [{**bounds, "count": count} for bounds, count in zip(self.bounds, counts, strict=True)]


def read_ranges(
    given: Mapping[str, Sequence[Any]], fields: Mapping[str, FieldKind]
) -> tuple[dict[str, FieldRanges], list[FieldError]]:
    """Give the ranges of `facet_ranges` by field, and their errors."""
    found: dict[str, FieldRanges] = {}
    errors: list[FieldError] = []
    if (together := sum(map(len, given.values()))) > MAX_EDGES:
        return found, [FieldError("facet_ranges", f"at most {MAX_EDGES} edges are possible", together)]
    for name, edges in given.items():
        path, kind = f"facet_ranges.{shortened(name)}", fields.get(name)
        if kind is None or kind not in _READ:
            numbers = (one for one, of in fields.items() if of in _READ)
            known = shortened(", ".join(numbers), _LONGEST_LIST) or "none"
            errors.append(FieldError(path, f"only declared numbers and dates are counted in ranges: {known}"))
            continue
        try:
            read = [_READ[kind](edge) for edge in edges]
        except ValueError as error:
            errors.append(FieldError(path, f"{error}"))
            continue
        if not read or any(high <= low for low, high in pairwise(read)):
            errors.append(FieldError(path, "expected one edge or more, each above the one before"))
            continue
        bounds = [_bounds(low, high) for low, high in pairwise([None, *edges, None])]
        conditions = [read_filter(Condition.model_validate({"field": name, **one}), fields, path) for one in bounds]
        found[name] = FieldRanges(kind, tuple(read), tuple(bounds), tuple(condition for condition, _ in conditions))
        errors += [error for _, wrong in conditions for error in wrong]
    return found, errors


def count_in_ranges(ranges: FieldRanges, values: Iterable[object]) -> list[int]:
    """Count the documents that have a value in each range, by their values as the documents have them."""
    counts: Counter[int] = Counter()
    for value in values:
        counts.update({bisect_right(ranges.edges, one) for one in values_of(ranges.kind, value)})
    return [counts[place] for place in range(len(ranges.edges) + 1)]


def _bounds(low: Any, high: Any) -> Plain:
    return {name: edge for name, edge in (("gte", low), ("lt", high)) if edge is not None}
