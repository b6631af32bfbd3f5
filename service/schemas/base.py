"""What all models of the API have in common."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["LegName", "Mode", "Model", "Normalization"]

LegName = Literal["dense", "sparse", "bm25"]
"""What ranks documents. `hybrid` fuses the first two; `bm25` stands by itself, for comparison."""

Mode = Literal["hybrid", "dense", "sparse", "bm25"]

Normalization = Literal["range", "paper"]
"""How a leg's scores are mapped before they are added, see `service.search.fusion`."""


class Model(BaseModel):
    """Base of them all: unknown fields are refused, nothing is converted, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
