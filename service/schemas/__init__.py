"""What the API takes and gives, as pydantic models."""

from service.schemas.answers import (
    BatchResponse,
    Document,
    EncodeResponse,
    EncodeTimings,
    FieldProblem,
    Hit,
    LegScore,
    Problem,
    SearchResponse,
    Timings,
    TokenCount,
)
from service.schemas.base import LegName, Mode
from service.schemas.facts import BundleFacts, Info, Limits, Reloaded, Status
from service.schemas.requests import (
    BatchRequest,
    EncodeRequest,
    LinearFusion,
    RrfFusion,
    SearchRequest,
    Weights,
)

__all__ = [
    "BatchRequest",
    "BatchResponse",
    "BundleFacts",
    "Document",
    "EncodeRequest",
    "EncodeResponse",
    "EncodeTimings",
    "FieldProblem",
    "Hit",
    "Info",
    "LegName",
    "LegScore",
    "Limits",
    "LinearFusion",
    "Mode",
    "Problem",
    "Reloaded",
    "RrfFusion",
    "SearchRequest",
    "SearchResponse",
    "Status",
    "Timings",
    "TokenCount",
    "Weights",
]
