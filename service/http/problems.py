"""Converts our errors to RFC 9457 problems, and pydantic's errors to ours."""

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from pydantic import ValidationError

from lightretriever.service.errors import MOST_FIELD_ERRORS, FieldError, ServiceError, shortened
from lightretriever.service.schemas.filters import TAGS

__all__ = ["PROBLEM_JSON", "field_errors", "problem"]

PROBLEM_JSON: Final = "application/problem+json"

_LONGEST_MESSAGE: Final = 300

_OF_OPENAI: Final = re.compile(r"(/collections/[^/]+)?/v1/")

# Pydantic puts the chosen member of a tagged union into the path after it: fusion.linear.weights.
_UNION: Final = "fusion"


def problem(error: ServiceError, *, instance: str, request_id: str) -> dict[str, Any]:
    """Give the RFC 9457 object of an error. `type` is the address of the kind's documentation on this server,
    relative to `instance`, so that it also leads there behind a proxy that takes a prefix off.

    Below `/v1`, also that of a collection, `error` has its text for clients of OpenAI's API.
    """
    fields = [asdict(item) for item in error.errors]
    return {
        "type": f"{'../' * (instance.count('/') - 1)}docs#error-{error.kind}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "instance": shortened(instance),
        "kind": error.kind,
        "request_id": request_id,
        "errors": [{name: value for name, value in field.items() if value is not None} for field in fields],
        **({"error": {"message": error.detail, "type": error.kind}} if _OF_OPENAI.match(instance) else {}),
    }


def field_errors(error: ValidationError) -> list[FieldError]:
    """Convert the first twenty of pydantic's errors.

    Paths are dotted, without the tags of unions; messages and values are shortened.
    """
    return [_field_error(item) for item in error.errors(include_url=False)[:MOST_FIELD_ERRORS]]


def _field_error(item: Mapping[str, Any]) -> FieldError:
    place, kind = item["loc"], item["type"]
    path = [
        str(part) for before, part in zip(("", *place), place, strict=False) if before != _UNION and part not in TAGS
    ]
    message, value = shortened(item["msg"].removeprefix("Value error, "), _LONGEST_MESSAGE), _echo(item["input"])
    if kind == "extra_forbidden":
        message = "there is no such field"
    elif kind == "model_type":
        message = "must be an object"  # pydantic's own message names a class of Python
    elif kind in ("missing", "union_tag_not_found"):
        message, value = "the field is required", None
    elif kind == "union_tag_invalid":
        # Pydantic's own message repeats the whole tag, which may be long.
        message, value = f"must be one of {item['ctx']['expected_tags']}", _echo(item["input"]["method"])
    if kind.startswith("union_tag"):
        path.append("method")
    return FieldError(shortened(".".join(path) or "body"), message, value)


def _echo(value: object) -> str | int | float | bool | None:
    if isinstance(value, bool | float | None):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**53 else str(value)
    return shortened(value) if isinstance(value, str) else None
