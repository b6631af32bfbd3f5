"""Models of the answer of `/encode`."""

from lightretriever.service.schemas.answers import LEG
from lightretriever.service.schemas.base import LegName, Model
from pydantic import Field

__all__ = ["EncodeResponse", "EncodeTimings", "TokenCount"]


def _absent(value: object) -> bool:
    return value is None


class TokenCount(Model):
    """A token of the text."""

    id: int
    token: str = Field(description="The tokenizer's own spelling.")
    count: int = Field(description="Occurrences in the text.")
    weight: float = Field(
        description="Its weight in the sparse query, by the bundle's `query_weights`, see `/info`; of a token of the "
        "dense leg alone, in the mean."
    )
    leg: LegName | None = Field(default=None, exclude_if=_absent, description=LEG)


class EncodeTimings(Model):
    """Milliseconds per stage."""

    tokenize: float
    encode: float
    total: float


class EncodeResponse(Model):
    """A text encoded as a query."""

    task: str
    dimension: int
    dense: list[float] = Field(description="Query vector of length 1; empty if only the sparse leg knows a token.")
    tokens: list[TokenCount] = Field(
        description="By id; if the legs have different tokenizers, the sparse one's first."
    )
    head_query: bool | None = Field(default=None, exclude_if=_absent, description="As in the answer of a search.")
    timings_ms: EncodeTimings
