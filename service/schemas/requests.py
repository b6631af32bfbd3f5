"""Models of requests. JSON types are not converted: "5" is not a number."""

from typing import Annotated, Any, Final, Literal, Self

from lightretriever.service.schemas.base import Mode, Model, Normalization
from lightretriever.service.schemas.filters import Filter
from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

__all__ = [
    "BatchRequest",
    "EmbeddingsRequest",
    "EncodeRequest",
    "LinearFusion",
    "QueryTerm",
    "RrfFusion",
    "SearchRequest",
    "SnippetRequest",
    "Weights",
]

# pydantic deep-copies a list default for every request, and leaves a `default_factory` out of the JSON schema.
_EMPTY: Final[dict[str, Any]] = {"default": []}


class Weights(Model):
    """Weight of each leg. A leg with weight 0 is not searched."""

    dense: float = Field(ge=0, le=1000, allow_inf_nan=False, description="Weight of the dense leg.")
    sparse: float = Field(ge=0, le=1000, allow_inf_nan=False, description="Weight of the sparse leg.")
    bm25: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        allow_inf_nan=False,
        exclude_if=lambda weight: weight == 0,
        description="Weight of BM25 on words, if `/info` lists its mode.",
    )

    @model_validator(mode="after")
    def _not_all_zero(self) -> Self:
        if not (self.dense or self.sparse or self.bm25):
            raise ValueError("one of the weights must be above 0")
        return self


class LinearFusion(Model):
    """Weighted sum of normalised scores: `score = sum of weight * n(score of the leg)`."""

    method: Literal["linear"] = "linear"
    weights: Weights | None = Field(default=None, description="Null: the bundle's weights, see `/info`.")
    normalization: Normalization = Field(
        default="range",
        description="`range`: map a leg's scores of all candidates, including the other legs', onto 0.001 to 1, and to "
        "1 if all are equal. `paper`: plain min-max over the leg's own candidates, 0 for the last, for a single one "
        "and for documents that the leg did not propose.",
    )


class RrfFusion(Model):
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


class QueryTerm(Model):
    """An extra text of the query. It counts as if it were appended to the query `weight` times."""

    text: str = Field(min_length=1, description="Words.", examples=["video"])
    weight: float = Field(
        ge=-100,
        le=100,
        allow_inf_nan=False,
        description="How often the words count. A negative weight lowers the scores of documents that contain the "
        "words or are near them.",
        examples=[-0.5],
    )

    _blank = field_validator("text")(_not_blank)

    @field_validator("weight")
    @classmethod
    def _not_zero(cls, weight: float) -> float:
        if weight == 0:
            raise ValueError("with weight 0 the words count nothing: leave them out")
        return weight


class SnippetRequest(Model):
    """The snippets to make."""

    fields: list[str] = Field(
        default=["title", "text"],
        min_length=1,
        max_length=20,
        description="Text fields; they need not be among the returned `fields`.",
    )
    length: int = Field(default=200, ge=20, le=2000, description="Most characters of a snippet.")


class SearchRequest(Model):
    """One search."""

    query: str = Field(min_length=1, description="What to look for, in plain words.", examples=["play music"])
    terms: list[QueryTerm] = Field(
        default_factory=list,
        max_length=100,
        description="Extra words of the query, with weights that may be negative. BM25 reads only `query`.",
        json_schema_extra=_EMPTY,
    )
    k: int = Field(
        default=10, ge=1, description="Number of hits. `offset + k` must not exceed `candidates`, if that is given."
    )
    offset: int = Field(default=0, ge=0, description="Hits to skip, for paging.")
    mode: Mode = Field(
        default="hybrid",
        description="The legs of weight above 0 fused, or one leg alone, whose own score is then `score`. `bm25`: "
        "plain BM25 on words, if `/info` lists it.",
    )
    task: str | None = Field(
        default=None,
        description="Name of the token table that encodes the query, see `/info`. Null: the bundle's default.",
    )
    fusion: Fusion = Field(default=LinearFusion(), description="How to combine the legs in mode `hybrid`.")
    candidates: int | None = Field(
        default=None,
        ge=1,
        description="Number of documents that each leg proposes. The order of hits depends on it, but not on `k` or "
        "`offset`. Null: the service's default, see `/info`, or as many times that as `offset + k` needs.",
    )
    fields: list[str] | None = Field(
        default=None, max_length=100, description="Document fields to return, see `/info`. Null: all. []: none."
    )
    deadline_ms: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Time limit of this request in milliseconds, at most the service's own deadline, see `/info`.",
    )
    allow_partial: bool = Field(
        default=True,
        description="If a leg fails or is late: answer with the others and name the missing leg in "
        "`degraded` (true), or answer with an error (false).",
    )
    filter: Filter | None = Field(
        default=None,
        description="Condition that restricts all legs to matching documents.",
        examples=[{"field": "year", "gte": 2019}],
    )
    facets: list[str] = Field(
        default_factory=list,
        max_length=20,
        description="Declared keyword fields whose values to count over all candidates of the legs.",
        json_schema_extra=_EMPTY,
    )
    snippets: SnippetRequest | None = Field(
        default=None,
        description="For each hit, give the part of its text that matches the query best, with the query's words "
        "marked.",
        examples=[{"fields": ["text"], "length": 160}],
    )
    explain: bool = Field(
        default=False, description="For each hit, give the share of each leg and each query token in its scores."
    )

    _blank = field_validator("query")(_not_blank)


class BatchRequest(Model):
    """Several searches, accepted or refused as a whole. Each deadline counts from the batch's arrival."""

    searches: list[SearchRequest] = Field(min_length=1, description="The answers have the same order.")


class EncodeRequest(Model):
    """A text to encode as a query."""

    text: str = Field(min_length=1, description="The text.", examples=["play music"])
    task: str | None = Field(default=None, description="Name of the token table. Null: the bundle's default.")

    _blank = field_validator("text")(_not_blank)


_MOST_TEXTS: Final = 2048


def _as_texts(value: object) -> object:
    """Give one text as a list of one. ValueError for token ids, which OpenAI's API also takes."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and isinstance(value[0], int | list):
        raise ValueError("send texts, not token ids: the bundle has a tokenizer of its own")
    return value


class EmbeddingsRequest(Model):
    """Texts to encode as queries, in the form of OpenAI's `POST /v1/embeddings`."""

    input: Annotated[
        list[Annotated[str, Field(min_length=1)]],
        Field(min_length=1, max_length=_MOST_TEXTS, description="A text, or a list of texts.", examples=["play music"]),
        BeforeValidator(_as_texts),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "minLength": 1},
                    {
                        "type": "array",
                        "items": {"type": "string", "minLength": 1},
                        "minItems": 1,
                        "maxItems": _MOST_TEXTS,
                    },
                ],
                "title": "Input",
            }
        ),
    ]
    model: str = Field(
        description="A task, see `tasks` in `/info`, or the bundle's name for the default task.", examples=["default"]
    )
    encoding_format: Literal["float", "base64"] = Field(
        default="float", description="Numbers, or base64 of float32 in little-endian order."
    )
    dimensions: int | None = Field(default=None, ge=1, description="If given, it must be the bundle's dimension.")
    user: str | None = Field(default=None, description="Ignored.")

    @field_validator("input")
    @classmethod
    def _none_blank(cls, texts: list[str]) -> list[str]:
        for place, text in enumerate(texts):
            if not text.strip():
                raise ValueError(f"text {place} is empty or white space only")
        return texts
