"""Models of the service's description of itself."""

from typing import Literal

from pydantic import Field

from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.service.schemas.base import LegName, Mode, Model, Normalization, optional
from lightretriever.service.schemas.requests import Weights


class Status(Model):
    """Answer of the health routes."""

    status: Literal["alive", "ready"]
    index: str | None = optional("The cluster's index that is searched; present if there is one.")
    warning: str | None = optional(
        "What to do about many documents written beside the bundle, and about a file of rules that "
        "can't be used; present if there is either."
    )


class ModelFacts(Model):
    """A model."""

    name: str
    sha256: str | None = Field(description="SHA-256 over its weights, adapter and settings.")
    adapter: str | None
    licence: str | None


class BundleFacts(Model):
    """The served bundle."""

    name: str
    version: str = Field(description="SHA-256 of the manifest, which has the SHA-256 of every file.")
    created: str
    generator: str
    model: str
    trained: bool = Field(description="Whether the model was trained for retrieval.")
    corpus: str
    corpus_licence: str | None
    documents: int
    dimension: int
    vocab_size: int
    sparse_vocab_size: int | None = optional("Ids of the sparse leg's tokenizer; present if it has its own.")
    sparse_model: ModelFacts | None = optional("What made the impacts; present if that is another model.")
    dense_index: str | None = Field(description="Faiss factory string; null for a bundle without a dense leg.")
    vocabulary: Literal["words", "tokens"] = Field(description="What a term of the sparse leg is.")
    language: str | None = Field(description="Whose analyzer makes the words; null if a term is a token.")
    expanded: bool = Field(description="Whether the token table added words to the documents.")
    query_weights: Literal["count", "idf_count"] = Field(
        description="A query token's weight in the sparse leg: its count, or its count times its IDF."
    )
    fusion_weights: Weights = Field(description="Default weights of linear fusion.")
    feedback: float = Field(description="Default of `fusion.feedback`; 0 for a bundle without a dense leg.")
    normalization: Normalization = Field(description="Default of `fusion.normalization`.")


class Reloaded(Model):
    """The served bundle after a reload."""

    swapped: bool = Field(description="Whether the reload changed the bundle.")
    bundle: BundleFacts


class Limits(Model):
    """The settings that bound a request."""

    deadline_ms: float
    candidates: int = Field(description="Default of `candidates` in a request.")
    max_candidates: int
    max_query_chars: int
    max_batch: int
    max_batch_hits: int = Field(description="Most hits of a batch: the sum of its `k`.")
    max_explained: int = Field(description="Most `k` times different tokens and terms of a request with `explain`.")
    max_body_bytes: int


class MatchLimits(Model):
    """Thresholds of the dense score: a document matches weakly or strongly from there on."""

    weak: float = Field(description="One in 20 unrelated queries finds a document that scores as high.")
    strong: float = Field(description="One in 200 does.")
    queries: int = Field(description="Number of unrelated queries that were asked when the bundle was built.")


class LegFacts(Model):
    """A leg: a way of ranking."""

    backend: str = Field(description="What searches it: `faiss`, `lucene` or `opensearch`.")


class ClusterFacts(Model):
    """The OpenSearch cluster that searches the legs."""

    address: str = Field(description="Addresses of its nodes.")
    version: str
    alias: str
    index: str = Field(description="The index that is searched: what the alias stands for.")
    engine: str = Field(description="What searches the vectors: `lucene` or `faiss`.")


class CollectionFacts(Model):
    """A collection: a bundle under a name."""

    name: str
    bundle: str = Field(description="Name of the bundle.")
    version: str = Field(description="SHA-256 of the bundle's manifest.")
    documents: int
    ready: bool


class CollectionList(Model):
    """The collections of the process, first that which is meant where a path names none."""

    collections: list[CollectionFacts]


class Info(Model):
    """The served bundle and the limits of requests."""

    bundle: BundleFacts
    collections: list[str] = optional("Names of the collections; present if there are several.", default=[])
    legs: dict[LegName, LegFacts] = Field(description="The bundle's legs.")
    cluster: ClusterFacts | None = optional("The legs' cluster; present with the backend `opensearch`.")
    document_model: str | None = optional(
        "The model that encodes documents written as fields alone; present if the service has one. "
        "Searches don't ask it."
    )
    default_task: str
    tasks: dict[str, str] = Field(description="Name and instruction of each token table.")
    head_queries: dict[str, int] = optional(
        "By task, the number of queries that the model itself read; present if a task has any.", default={}
    )
    matched: dict[str, MatchLimits] = optional(
        "By task, the thresholds of `matched` in answers; present if the bundle has any.", default={}
    )
    rerank_top: int | None = optional(
        "Candidates that a reranking model reads in each search; present if the service has one. It is a "
        "model in the query path."
    )
    modes: list[Mode] = Field(
        description="Search modes; of a bundle without a dense leg, `hybrid` and `sparse`, which are the same."
    )
    examples: list[str] = optional(
        "Queries to try: those of the recipe, or else titles; absent if the service has API keys.", default=[]
    )
    fields: list[str] = Field(description="Document fields that a request may name.")
    spelling: bool = optional(
        "Whether requests may have `spelling` and `prefix`; present if so: the terms of the bundle are "
        "words, and it is on this machine.",
        default=False,
    )
    filters: dict[str, FieldKind] = Field(description="Declared fields, which a filter may name.")
    limits: Limits
    versions: dict[str, str]
