"""Conditions on declared fields of the documents.

{"field": "year", "gte": 2019, "lt": 2024}
{"and": [{"field": "source", "in": ["wiki", "news"]}, {"not": {"field": "draft", "eq": true}}]}
"""

from datetime import date
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from lightretriever.service.schemas.base import Model


def _plain(value: object) -> object:
    """Raise one error where the union would give one for each of its members."""
    if not isinstance(value, str | bool | int | float | date):
        several = "; in takes several" if isinstance(value, list) else ""
        raise ValueError(f"expected a text, a number, true or false{several}")
    return value.isoformat() if isinstance(value, date) else value


Value = Annotated[str | bool | int | float, BeforeValidator(_plain)]
"""A value of a declared field."""

_BOUNDS = ("gt", "gte", "lt", "lte")

TAGS: Final = frozenset({"(and)", "(or)", "(not)", "(condition)"})
"""The kinds of filters, as pydantic puts them into the path of an error."""


class _Operator(Model):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)


class And(_Operator):
    """All of the conditions hold."""

    and_: list["Filter"] = Field(alias="and", min_length=1, max_length=1000, fail_fast=True)


class Or(_Operator):
    """At least one of the conditions holds."""

    or_: list["Filter"] = Field(alias="or", min_length=1, max_length=1000, fail_fast=True)


class Not(_Operator):
    """The condition does not hold."""

    not_: "Filter" = Field(alias="not")


class Condition(_Operator):
    """A condition on a field: `eq`, `in`, bounds, or `exists`. If a document has several values, one has to match."""

    field: str
    """Name of a declared field, see `filters` in `/info`."""
    eq: Value | None = None
    """Equal to this value. A date without a time is its whole day."""
    in_: list[Value] | None = Field(default=None, alias="in", min_length=1, max_length=1000, fail_fast=True)
    """Equal to one of these values."""
    gt: Value | None = None
    """Greater than this value; numbers and dates only. Of a date without a time: after that day."""
    gte: Value | None = None
    """Greater than or equal to this value."""
    lt: Value | None = None
    """Less than this value."""
    lte: Value | None = None
    """Less than or equal to this value. Of a date without a time: to the end of that day."""
    exists: bool | None = None
    """The field has a value (true) or none (false)."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        bounds = [name for name in _BOUNDS if getattr(self, name) is not None]
        tests = [name for name in ("eq", "in_", "exists") if getattr(self, name) is not None]
        if len(tests) + bool(bounds) != 1:
            raise ValueError("give one of: eq, in, exists, or bounds (gt, gte, lt, lte)")
        for pair in (("gt", "gte"), ("lt", "lte")):
            if set(pair) <= set(bounds):
                raise ValueError(f"give {pair[0]} or {pair[1]}, not both")
        return self


def _kind(value: Any) -> str:
    names = value if isinstance(value, dict) else getattr(value, "model_fields_set", ())
    return next((f"({name})" for name in ("and", "or", "not") if name in names or f"{name}_" in names), "(condition)")


Filter = Annotated[
    Annotated[And, Tag("(and)")]
    | Annotated[Or, Tag("(or)")]
    | Annotated[Not, Tag("(not)")]
    | Annotated[Condition, Tag("(condition)")],
    Discriminator(_kind),
]

for _model in (And, Or, Not):
    _model.model_rebuild()
