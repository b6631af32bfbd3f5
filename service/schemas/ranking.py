"""Models of what a request may do to the order of the candidates after fusion."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from lightretriever.service.schemas.base import Model

__all__ = ["Boost", "Sort"]


class Boost(Model):
    """Adds to the scores of candidates by the value of a declared field: give `half_life` or `scale`.

    With `half_life`: `weight * 0.5 ** (distance of the value to origin / half_life)`. With `scale`:
    `weight * min(1, log(1 + value) / log(1 + scale))`, for values above 0. Documents without a value get nothing; of
    several values, the one that adds most counts.
    """

    field: str = Field(min_length=1, description="A declared number or date.", examples=["year"])
    weight: float = Field(
        ge=-1000, le=1000, allow_inf_nan=False, description="The most that is added, or below 0 taken away."
    )
    half_life: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Distance at which half of the weight is left; days if the field is a date.",
    )
    origin: float | str | None = Field(
        default=None,
        description="Where the whole weight is added, for `half_life`: a number, or a date. Null: now, for a date.",
    )
    scale: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Number from which on the whole weight is added."
    )

    @field_validator("origin", mode="before")
    @classmethod
    def _number_or_date(cls, origin: object) -> object:
        """Return one error where a union would give one for each of its members."""
        if origin is not None and (isinstance(origin, bool) or not isinstance(origin, int | float | str)):
            raise ValueError("expected a number or a date")
        return origin

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        if (self.half_life is None) == (self.scale is None):
            raise ValueError("give half_life or scale, one of the two")
        if self.scale is not None and self.origin is not None:
            raise ValueError("origin belongs to half_life")
        return self


class Sort(Model):
    """Orders the candidates by a declared field. Ties keep the order of scores; documents without a value come last."""

    field: str = Field(min_length=1, description="A declared field.", examples=["year"])
    order: Literal["asc", "desc"] = Field(
        default="desc", description="Ascending or descending. Of several values, the first in this order counts."
    )
