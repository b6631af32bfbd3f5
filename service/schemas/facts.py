"""What the service tells of itself."""

from typing import Literal

from lightretriever.artifacts.corpus.fields import FieldKind
from lightretriever.service.schemas.base import LegName, Mode, Model
from lightretriever.service.schemas.requests import Weights
from pydantic import Field

__all__ = [
    "BundleFacts",
    "Info",
    "LegFacts",
    "Limits",
    "Reloaded",
    "Status",
]


class Status(Model):
    """Answer of the health routes."""

    status: Literal["alive", "ready"]


class BundleFacts(Model):
    """What is served."""

    name: str
    version: str = Field(description="SHA-256 of the manifest, which holds that of every file.")
    created: str
    generator: str
    model: str
    trained: bool = Field(description="Whether the model was trained for retrieval.")
    corpus: str
    corpus_licence: str | None
    documents: int
    dimension: int
    vocab_size: int
    dense_index: str = Field(description="Faiss factory string.")
    query_weights: Literal["count", "idf_count"] = Field(
        description="What a token of the query weighs in the sparse leg: its count, or its count times its IDF."
    )
    fusion_weights: Weights = Field(description="Weights of a linear fusion that names none.")


class Reloaded(Model):
    """What is served after a reload."""

    swapped: bool = Field(description="Whether it was not served before.")
    bundle: BundleFacts


class Limits(Model):
    """The settings a caller needs to know."""

    deadline_ms: float
    candidates: int = Field(description="Default of `candidates` in a request.")
    max_candidates: int
    max_query_chars: int
    max_batch: int
    max_batch_hits: int = Field(description="Most hits of a batch: the sum of its `k`.")
    max_explained: int = Field(description="Most `k` times different tokens of a request with `explain`.")
    max_body_bytes: int


class LegFacts(Model):
    """A leg: a way of ranking."""

    backend: str = Field(description="Where it is searched: `faiss`, `lucene` or `compiled`.")


class Info(Model):
    """What is served, and within which limits."""

    bundle: BundleFacts
    legs: dict[LegName, LegFacts] = Field(description="The legs that the bundle can be searched by.")
    default_task: str
    tasks: dict[str, str] = Field(description="Name and instruction of each token table.")
    modes: list[Mode] = Field(description="Modes of a search; `bm25` where the bundle has the words of its documents.")
    fields: list[str] = Field(description="Document fields that a request may name.")
    filters: dict[str, FieldKind] = Field(description="Declared fields, by which a search can be filtered.")
    limits: Limits
    versions: dict[str, str]
