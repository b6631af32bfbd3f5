"""Examples of requests and answers, shown in the API description. Tests send and validate them."""

from typing import Any, Final

from lightretriever.service.schemas import (
    BatchRequest,
    BatchResponse,
    Document,
    DocumentTerms,
    EncodeRequest,
    EncodeResponse,
    Info,
    Reloaded,
    SearchRequest,
    SearchResponse,
    Status,
)
from pydantic import BaseModel

__all__ = ["ANSWERS", "REQUESTS"]

_SEARCH: Final[dict[str, Any]] = {
    "hits": [
        {
            "id": "mpv",
            "rank": 1,
            "score": 0.9313,
            "dense": {"score": 0.7122, "rank": 2},
            "sparse": {"score": 1043.0, "rank": 1},
            "fields": {"title": "mpv", "text": "Video and music player for the terminal."},
        }
    ],
    "degraded": [],
    "mode": "hybrid",
    "task": "default",
    "candidates": 163,
    "timings_ms": {
        "tokenize": 0.037,
        "encode": 0.026,
        "dense": 0.61,
        "sparse": 0.82,
        "rescore": 0.19,
        "fuse": 0.06,
        "fetch": 0.09,
        "total": 1.62,
    },
}

_BUNDLE: Final[dict[str, Any]] = {
    "name": "demo",
    "version": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    "created": "2026-01-31T12:00:00+00:00",
    "generator": "lightretriever-search 0.1.0",
    "model": "SmolLM2-135M",
    "trained": False,
    "corpus": "debian-package-descriptions",
    "corpus_licence": "GPL-2.0-or-later",
    "documents": 60000,
    "dimension": 128,
    "vocab_size": 49152,
    "dense_index": "HNSW32,SQ8",
    "query_weights": "count",
    "fusion_weights": {"dense": 0.7, "sparse": 0.3},
}

REQUESTS: Final[dict[type[BaseModel], dict[str, Any]]] = {
    SearchRequest: {
        "simple": {"summary": "The first five hits", "value": {"query": "play music from the terminal", "k": 5}},
        "weights": {
            "summary": "More weight for the sparse leg, titles only",
            "value": {
                "query": "play music from the terminal",
                "fusion": {"method": "linear", "weights": {"dense": 0.4, "sparse": 0.6}},
                "fields": ["title"],
            },
        },
        "rrf": {
            "summary": "Reciprocal rank fusion over 100 candidates per leg, second page",
            "value": {
                "query": "play music from the terminal",
                "offset": 10,
                "candidates": 100,
                "fusion": {"method": "rrf", "weights": {"dense": 1, "sparse": 1}, "rank_constant": 60},
            },
        },
        "terms": {
            "summary": "Words that count more, and words that count against a document",
            "value": {
                "query": "player",
                "terms": [{"text": "music", "weight": 2.0}, {"text": "video", "weight": -0.5}],
            },
        },
        "snippets": {
            "summary": "The best part of each text, with the query's words marked",
            "value": {"query": "play music", "fields": ["title"], "snippets": {"fields": ["text"], "length": 160}},
        },
        "explain": {
            "summary": "Why each hit has its scores",
            "value": {"query": "play music", "k": 3, "explain": True},
        },
        "dense": {
            "summary": "The dense leg alone",
            "value": {"query": "play music from the terminal", "mode": "dense"},
        },
        "bm25": {
            "summary": "BM25 on words, to see what the others bring",
            "value": {"query": "play music from the terminal", "mode": "bm25", "fields": ["title"]},
        },
    },
    BatchRequest: {
        "two": {
            "summary": "Two searches",
            "value": {"searches": [{"query": "play music", "k": 3}, {"query": "edit text", "k": 3, "mode": "sparse"}]},
        }
    },
    EncodeRequest: {"simple": {"summary": "A text", "value": {"text": "play music from the terminal"}}},
}
"""Named examples of each request."""

ANSWERS: Final[dict[type[BaseModel], dict[str, Any]]] = {
    SearchResponse: _SEARCH,
    BatchResponse: {"results": [_SEARCH]},
    EncodeResponse: {
        "task": "default",
        "dimension": 3,
        "dense": [0.6, 0.0, -0.8],
        "tokens": [
            {"id": 1547, "token": "Ġmusic", "count": 1, "weight": 1.0},
            {"id": 2309, "token": "play", "count": 1, "weight": 1.0},
        ],
        "timings_ms": {"tokenize": 0.037, "encode": 0.026, "total": 0.071},
    },
    Document: {"id": "mpv", "fields": {"title": "mpv", "text": "Video and music player for the terminal."}},
    DocumentTerms: {
        "id": "mpv",
        "terms": [
            {"id": 2309, "token": "play", "impact": 214, "in_text": True},
            {"id": 5120, "token": "Ġlisten", "impact": 87, "in_text": False},
        ],
    },
    Status: {"status": "ready"},
    Reloaded: {"swapped": True, "bundle": _BUNDLE},
    Info: {
        "bundle": _BUNDLE,
        "legs": {"dense": {"backend": "faiss"}, "sparse": {"backend": "lucene"}, "bm25": {"backend": "lucene"}},
        "default_task": "default",
        "tasks": {"default": "Given a web search query, retrieve relevant passages that answer the query"},
        "modes": ["hybrid", "dense", "sparse", "bm25"],
        "fields": ["text", "title", "year"],
        "filters": {"year": "number"},
        "limits": {
            "deadline_ms": 1000.0,
            "candidates": 100,
            "max_candidates": 1000,
            "max_query_chars": 10000,
            "max_batch": 64,
            "max_batch_hits": 10000,
            "max_body_bytes": 1048576,
        },
        "versions": {"lightretriever-search": "0.1.0", "python": "3.11.7", "faiss": "1.15.1"},
    },
}
"""An example of each answer."""
