"""What all models of the API have in common."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

__all__ = ["LegName", "Mode", "Model"]

LegName = Literal["dense", "sparse"]
Mode = Literal["hybrid", "dense", "sparse"]


class Model(BaseModel):
    """Base of them all: unknown fields are refused, nothing is converted, nothing changes afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
