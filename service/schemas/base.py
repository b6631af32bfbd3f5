"""The base of all models of the API."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

LegName = Literal["dense", "sparse"]
"""A way of ranking documents. `hybrid` fuses those whose weight is above 0."""

Mode = Literal["hybrid", "dense", "sparse"]

Matched = Literal["strong", "weak", "none"]
"""How well a document matches, by the thresholds of the dense score that the bundle has, and by the query's words."""

Normalization = Literal["evidence", "range", "paper"]
"""How to map a leg's scores before adding them, see `service.search.fusion`."""

Plain = dict[str, Any]
"""An answer, or a part of it, with the keys of its model in their order: not validated on its way out."""


class Model(BaseModel):
    """Base of all models: no unknown fields, no type conversion, no infinite numbers, immutable. The text below a field
    is its description."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def optional(description: str = "", default: object = None) -> Any:
    """Return a field of an answer that is left out while it has its default."""
    return Field(default=default, exclude_if=lambda value: value == default, description=description or None)
