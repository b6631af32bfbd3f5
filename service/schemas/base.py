"""The base of all models of the API."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["LegName", "Matched", "Mode", "Model", "Normalization"]

LegName = Literal["dense", "sparse"]
"""A way of ranking documents. `hybrid` fuses those whose weight is above 0."""

Mode = Literal["hybrid", "dense", "sparse"]

Matched = Literal["strong", "weak", "none"]
"""How well a document matches, by the thresholds of the dense score that the bundle has, and by the query's words."""

Normalization = Literal["range", "zscore", "dbsf", "paper"]
"""How to map a leg's scores before adding them, see `service.search.fusion`."""


class Model(BaseModel):
    """Base of all models: no unknown fields, no type conversion, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
