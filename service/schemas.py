"""What the API takes and gives, as pydantic models. JSON types are not converted: "5" is no number."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from service.fusion import Normalization

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

LegName = Literal["dense", "sparse"]
Mode = Literal["hybrid", "dense", "sparse"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Weights(_Model):
    """Weight of each leg. A leg with weight 0 is not searched."""

    dense: float = Field(ge=0, le=1000, allow_inf_nan=False, description="Weight of the dense leg.")
    sparse: float = Field(ge=0, le=1000, allow_inf_nan=False, description="Weight of the sparse leg.")

    @model_validator(mode="after")
    def _not_both_zero(self) -> Self:
        if self.dense == 0 and self.sparse == 0:
            raise ValueError("one of the weights must be above 0")
        return self


class LinearFusion(_Model):
    """Weighted sum of normalised scores: `score = dense.weight * n(dense) + sparse.weight * n(sparse)`."""

    method: Literal["linear"] = "linear"
    weights: Weights | None = Field(default=None, description="Null: those that suit the bundle, see `/info`.")
    normalization: Normalization = Field(
        default="range",
        description="`range`: the candidates' scores in a leg, the other leg's candidates included, are mapped onto "
        "0.001 to 1, and to 1 where all are equal. `paper`: plain min-max over the leg's own candidates, 0 for the "
        "last, for a single one and for documents the leg did not propose.",
    )


class RrfFusion(_Model):
    """Reciprocal rank fusion: `score = sum of weight / (rank_constant + rank)`, ranks counted from 1."""

    method: Literal["rrf"]
    weights: Weights = Weights(dense=1.0, sparse=1.0)
    rank_constant: float = Field(
        default=60.0, ge=0, le=1_000_000, allow_inf_nan=False, description="60 in the literature."
    )


Fusion = Annotated[LinearFusion | RrfFusion, Field(discriminator="method")]


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("the text is empty or white space only")
    return text


class SearchRequest(_Model):
    """One search."""

    query: str = Field(min_length=1, description="What to look for, in plain words.", examples=["play music"])
    k: int = Field(default=10, ge=1, description="Number of hits. `offset + k` must not exceed `candidates`.")
    offset: int = Field(default=0, ge=0, description="Hits to skip, for paging.")
    mode: Mode = Field(
        default="hybrid", description="Both legs fused, or one alone. Alone, `score` is the leg's own score."
    )
    task: str | None = Field(
        default=None,
        description="Name of the token table that encodes the query, see `/info`. Null: the bundle's default.",
    )
    fusion: Fusion = Field(default=LinearFusion(), description="How the legs are combined in mode `hybrid`.")
    candidates: int | None = Field(
        default=None,
        ge=1,
        description="Documents each leg proposes. The order of hits depends on it, but not on `k` and `offset`. "
        "Null: the service's default, see `/info`.",
    )
    fields: list[str] | None = Field(
        default=None, max_length=100, description="Document fields to return, see `/info`. Null: all. []: none."
    )
    deadline_ms: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Milliseconds this request may take, at most the service's own deadline, see `/info`.",
    )
    allow_partial: bool = Field(
        default=True,
        description="When one of the two legs fails or is late: answer with the other one and name it in `degraded` "
        "(true), or answer with an error (false).",
    )

    _blank = field_validator("query")(_not_blank)


class BatchRequest(_Model):
    """Several searches. They are accepted or refused as a whole; each deadline counts from the batch's arrival."""

    searches: list[SearchRequest] = Field(min_length=1, description="Answered in this order.")


class EncodeRequest(_Model):
    """A text to encode as a query."""

    text: str = Field(min_length=1, description="The text.", examples=["play music"])
    task: str | None = Field(default=None, description="Name of the token table. Null: the bundle's default.")

    _blank = field_validator("text")(_not_blank)


class LegScore(_Model):
    """What a leg says about a hit."""

    score: float = Field(description="Dense: cosine. Sparse: sum of the token's weight times the document's impact.")
    rank: int | None = Field(description="Rank among the leg's candidates from 1, null if it did not propose the hit.")


class Hit(_Model):
    """One document found."""

    id: str
    rank: int = Field(description="Rank among all hits from 1, `offset` included.")
    score: float = Field(description="Fused score; in mode `dense` or `sparse` the leg's own score.")
    dense: LegScore | None = Field(description="Null where the dense leg was not searched or gave no score in time.")
    sparse: LegScore | None = Field(description="Null where the sparse leg was not searched or gave no score in time.")
    fields: dict[str, Any] = Field(description="The document's fields, those that were asked for.")


class Timings(_Model):
    """Milliseconds per stage; null where a stage did not take place. The legs run at the same time."""

    tokenize: float | None = None
    encode: float | None = Field(default=None, description="Mean of the tokens' table rows, normalised.")
    dense: float | None = None
    sparse: float | None = None
    rescore: float | None = Field(default=None, description="Each leg's score for the other's candidates.")
    fuse: float | None = None
    fetch: float | None = Field(default=None, description="Reading the documents.")
    total: float = Field(description="From the arrival of the request, waiting included.")


class SearchResponse(_Model):
    """The hits of one search."""

    hits: list[Hit]
    degraded: list[LegName] = Field(description="Legs that failed or were late and are missing in this ranking.")
    mode: Mode
    task: str
    candidates: int = Field(description="Different documents the legs proposed together.")
    timings_ms: Timings


class BatchResponse(_Model):
    """The answers of a batch, in the order of its searches."""

    results: list[SearchResponse]


class TokenCount(_Model):
    """A token of the text."""

    id: int
    token: str = Field(description="The tokenizer's own spelling.")
    count: int = Field(description="How often it occurs.")
    weight: float = Field(description="Its weight in the sparse query, by the bundle's `query_weights`, see `/info`.")


class EncodeTimings(_Model):
    """Milliseconds per stage."""

    tokenize: float
    encode: float
    total: float


class EncodeResponse(_Model):
    """A text as both legs see it."""

    task: str
    dimension: int
    dense: list[float] = Field(description="Query vector of length 1.")
    tokens: list[TokenCount] = Field(description="By id.")
    timings_ms: EncodeTimings


class Document(_Model):
    """A stored document."""

    id: str
    fields: dict[str, Any]


class Status(_Model):
    """Answer of the health routes."""

    status: Literal["alive", "ready"]


class BundleFacts(_Model):
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


class Reloaded(_Model):
    """What is served after a reload."""

    swapped: bool = Field(description="Whether it was not served before.")
    bundle: BundleFacts


class Limits(_Model):
    """The settings a caller needs to know."""

    deadline_ms: float
    candidates: int = Field(description="Default of `candidates` in a request.")
    max_candidates: int
    max_query_chars: int
    max_batch: int
    max_body_bytes: int


class Info(_Model):
    """What is served, and within which limits."""

    bundle: BundleFacts
    default_task: str
    tasks: dict[str, str] = Field(description="Name and instruction of each token table.")
    fields: list[str] = Field(description="Document fields that a request may name.")
    limits: Limits
    versions: dict[str, str]


class FieldProblem(_Model):
    """What is wrong with one field."""

    field: str = Field(description="Path of the field, as in `fusion.weights.dense`.")
    message: str
    value: str | int | float | bool | None = Field(default=None, description="What was found there, shortened.")


class Problem(_Model):
    """An error, as RFC 9457 has it."""

    type: str = Field(description="Where this kind of error is explained.")
    title: str
    status: int
    detail: str = Field(description="What is wrong with this very request, and what to do about it.")
    instance: str = Field(description="Path of the request.")
    kind: str = Field(description="Short name of the kind of error, for programs.")
    request_id: str = Field(description="Also in the header X-Request-ID and in the log.")
    errors: list[FieldProblem] = Field(description="The fields at fault, if any.")
