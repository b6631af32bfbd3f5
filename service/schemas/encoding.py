"""Models of the answer of `/encode`."""

from pydantic import Field

from lightretriever.service.schemas.answers import TermCount, TokenCount
from lightretriever.service.schemas.base import Model

__all__ = ["EncodeResponse", "EncodeTimings"]


def _absent(value: object) -> bool:
    return value is None


class EncodeTimings(Model):
    """Milliseconds per stage."""

    tokenize: float
    encode: float | None = Field(default=None, description="As in the answer of a search; null without a dense leg.")
    total: float


class EncodeResponse(Model):
    """A text encoded as a query."""

    task: str
    dimension: int
    dense: list[float] = Field(description="Query vector of length 1; empty if only the sparse leg finds a term.")
    terms: list[TermCount] = Field(description="The terms of the sparse leg, in the text's order.")
    tokens: list[TokenCount] = Field(description="The tokens of the dense leg, by id.")
    head_query: bool | None = Field(default=None, exclude_if=_absent, description="As in the answer of a search.")
    timings_ms: EncodeTimings
