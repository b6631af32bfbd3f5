"""Models of how a leg is searched."""

from lightretriever.service.schemas.base import Model
from pydantic import Field

__all__ = ["TwoPhase"]


class TwoPhase(Model):
    """Search of the sparse leg in two phases: the terms that can add most to a score find `depth` documents, and all
    terms score them. Scores are exact, but documents may be missing."""

    share: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="Share of the highest possible score that the first phase's terms can make together: the fewest "
        "that suffice. A term can add its weight times its largest impact. 1: all terms, which misses nothing.",
    )
    depth: int | None = Field(
        default=None,
        ge=1,
        description="Number of documents that the first phase finds, at least `candidates`. Null: twice as many as "
        "`candidates`, up to the service's `max_candidates`.",
    )
