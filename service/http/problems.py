"""Converts our errors to RFC 9457 problems, and pydantic's errors to ours."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from difflib import get_close_matches
from typing import Any, Final

import orjson
from pydantic import ValidationError

from lightretriever.service.errors import MAX_FIELD_ERRORS, FieldError, ServiceError, shortened
from lightretriever.service.schemas.filters import TAGS
from lightretriever.service.schemas.requests import SearchRequest

__all__ = ["PROBLEM_JSON", "field_errors", "problem"]

PROBLEM_JSON: Final = "application/problem+json"

_MAX_MESSAGE: Final = 300

# Pydantic puts the chosen member of a tagged union into the path after it: fusion.linear.weights.
_UNION: Final = "fusion"

_OF_DOCUMENT: Final = {"title": "fields.title", "text": "fields.text"}
_OF_SEARCH: Final = {
    **dict.fromkeys(("top_k", "topk", "limit", "size", "n", "count", "num_results"), "k"),
    **dict.fromkeys(("filters", "where"), "filter"),
    **dict.fromkeys(("q", "text", "search"), "query"),
    **dict.fromkeys(("from", "skip", "start", "page"), "offset"),
    **dict.fromkeys(("highlight", "snippet"), "snippets"),
    **dict.fromkeys(("order_by", "sort_by"), "sort"),
    **dict.fromkeys(("alpha", "weights"), "fusion.weights"),
}
_MEANT: Final[Mapping[str, Mapping[str, str]]] = {
    "DocumentWrite": _OF_DOCUMENT,
    "DocumentLine": {"_id": "id", **_OF_DOCUMENT},
    "EncodeRequest": dict.fromkeys(("q", "query"), "text"),
    "SearchRequest": _OF_SEARCH,
    "BatchRequest": _OF_SEARCH,
}
"""By the model of a request, what it calls fields that others name so."""

_CONDITION: Final = '{"field": "…", "eq": …}, with in, gt, gte, lt, lte or exists in place of eq'


def problem(error: ServiceError, *, instance: str, request_id: str) -> dict[str, Any]:
    """Return the RFC 9457 object of an error. `type` is the address of the kind's description on this server,
    relative to `instance`, so that it also leads there behind a proxy that takes a prefix off."""
    fields = [asdict(item) for item in error.errors]
    return {
        "type": f"{'../' * (instance.count('/') - 1)}openapi.json#/x-error-kinds/{error.kind}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "instance": shortened(instance),
        "kind": error.kind,
        "request_id": request_id,
        "errors": [{name: value for name, value in field.items() if value is not None} for field in fields],
    }


def field_errors(error: ValidationError) -> list[FieldError]:
    """Convert the first twenty of pydantic's errors. Paths are dotted, without the tags of unions; messages and values
    are shortened."""
    items = error.errors(include_url=False)[:MAX_FIELD_ERRORS]
    nameless = {item["loc"][:-1] for item in items if item["type"] == "missing" and item["loc"][-1] == "field"}
    items.sort(key=lambda item: item["type"] == "missing" and item["loc"][:-1] in nameless)  # others say what to write
    return [_field_error(item, nameless, error.title) for item in items]


def _field_error(item: Mapping[str, Any], nameless: Collection[tuple[str | int, ...]], model: str) -> FieldError:
    loc, kind = item["loc"], item["type"]
    path = [str(part) for before, part in zip(("", *loc), loc, strict=False) if before != _UNION and part not in TAGS]
    message, value = shortened(item["msg"].removeprefix("Value error, "), _MAX_MESSAGE), item["input"]
    if kind == "extra_forbidden":
        message = "there is no such field" + _meant(loc, item["input"], nameless, model)
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        message = "must be an object" + _object(loc, item["input"])  # pydantic's own message names a class of Python
    elif kind == "string_pattern_mismatch":
        message = "the text is empty or white space only"
    elif kind == "list_type":
        named = isinstance(value, str) and loc[-1] in ("fields", "facets")
        message = "must be a list" + (f": write [{orjson.dumps(value).decode()}]" if named else "")
    elif kind in ("missing", "union_tag_not_found"):
        hint = ': write {"fields": {"title": "…", "text": "…"}}' if loc[-1:] == ("fields",) else ""
        hint = ": linear or rrf" if kind == "union_tag_not_found" else hint
        message, value = f"the field is required{hint}", None
    elif kind == "union_tag_invalid":
        # Pydantic's own message repeats the whole tag, which may be long.
        message, value = f"must be one of {item['ctx']['expected_tags']}", item["input"]["method"]
    if kind.startswith("union_tag"):
        path.append("method")
    return FieldError(shortened(".".join(path) or "body"), message, value)


def _meant(loc: tuple[str | int, ...], value: object, nameless: Collection[tuple[str | int, ...]], model: str) -> str:
    """Return what to write in loc of a field that there is not: where `field` is missing, that it is its value."""
    name, inside = str(loc[-1]), loc[:-1]
    if inside in nameless and isinstance(value, str | int | float):
        key = next((key for part, key in (("filter", "eq"), ("sort", "order")) if part in inside), None)
        shown = f'{{"field": "{shortened(name)}", "{key}": {shortened(orjson.dumps(value, default=str).decode())}}}'
        return "" if key is None else f": write {shown}"
    if "filter" in inside:
        return f"; a condition is {_CONDITION}; and, or and not have conditions"
    if inside and isinstance(inside[-1], str):
        return ""
    near = (
        get_close_matches(name.lower(), SearchRequest.model_fields, 1, 0.75) if _MEANT.get(model) is _OF_SEARCH else []
    )
    meant = _MEANT.get(model, {}).get(name.lower()) or (near[0] if near else None)
    return "" if meant is None else f"; did you mean {meant}?"


def _object(loc: tuple[str | int, ...], value: object) -> str:
    name = str(next((part for part in reversed(loc) if part not in TAGS), ""))
    text = shortened(value) if isinstance(value, str) else None
    examples = {"snippets": "{}", "filter": _CONDITION if text is not None else '{"and": […]} around conditions'}
    if text is not None:
        examples |= {"fusion": f'{{"method": "{text.lower()}"}}', "sort": f'{{"field": "{text}"}}'}
    return f": write {examples[name]}" if name in examples else ""
