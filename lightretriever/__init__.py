"""Hybrid search with the ranking of a neural model and no model in the query path.

from lightretriever import Bundle, SearchClient
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightretriever.artifacts.bundle.reader import Bundle
    from lightretriever.service.client import AsyncSearchClient, SearchClient
    from lightretriever.service.search.engine import SearchEngine

__all__ = ["AsyncSearchClient", "Bundle", "SearchClient", "SearchEngine"]

_HOMES = {
    "AsyncSearchClient": "lightretriever.service.client",
    "Bundle": "lightretriever.artifacts.bundle.reader",
    "SearchClient": "lightretriever.service.client",
    "SearchEngine": "lightretriever.service.search.engine",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that the client loads neither Java nor Faiss."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
