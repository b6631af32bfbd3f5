"""Converts a hit to a text and metadata, as the retrievers of other libraries have them."""

from collections.abc import Mapping
from typing import Any, Final

from lightretriever.service.schemas import Hit, LegScore, SearchResponse

__all__ = ["SCORES", "hit_metadata", "hit_text"]

SCORES: Final = (
    *("id", "rank", "score", "dense_score", "dense_rank", "sparse_score", "sparse_rank"),
    "matched",
    "degraded",
)
"""Keys of `hit_metadata` that describe the search; all others are fields of the document."""


def hit_text(fields: Mapping[str, Any], text_field: str) -> str:
    """Give the document's text, or its title if the text is empty."""
    text = fields.get(text_field) or fields.get("title") or ""
    return text if isinstance(text, str) else str(text)


def hit_metadata(response: SearchResponse, hit: Hit, text_field: str) -> dict[str, Any]:
    """Give the document's fields without its text, and `SCORES`, with None for what the answer lacks.

    A document field with one of these names becomes `document_NAME`.
    """
    fields = {
        f"document_{name}" if name in SCORES else name: value
        for name, value in hit.fields.items()
        if name != text_field
    }
    return fields | {
        "id": hit.id,
        "rank": hit.rank,
        "score": hit.score,
        **_of_leg("dense", hit.dense),
        **_of_leg("sparse", hit.sparse),
        "matched": hit.matched,
        "degraded": ", ".join(response.degraded),
    }


def _of_leg(name: str, leg: LegScore | None) -> dict[str, Any]:
    return {f"{name}_score": leg.score if leg else None, f"{name}_rank": leg.rank if leg else None}
