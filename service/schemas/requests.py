"""Models of requests. JSON types are not converted: "5" is not a number."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from lightretriever.artifacts.documents.bounds import MAX_FEEDBACK
from lightretriever.service.schemas.base import Mode, Model, Normalization
from lightretriever.service.schemas.filters import Filter, Value
from lightretriever.service.schemas.ranking import Boost, Sort

__all__ = [
    "BatchRequest",
    "DocumentLine",
    "DocumentWrite",
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

    @model_validator(mode="after")
    def _not_all_zero(self) -> Self:
        if not (self.dense or self.sparse):
            raise ValueError("one of the weights must be above 0")
        return self


class LinearFusion(Model):
    """Weighted sum of normalised scores: `score = sum of weight * n(score of the leg)`."""

    method: Literal["linear"] = "linear"
    weights: Weights | None = Field(default=None, description="Null: the bundle's weights, see `/info`.")
    normalization: Normalization | None = Field(
        default=None,
        description="`range`: map a leg's scores of all candidates, including the other legs', onto 0.001 to 1, and to "
        "1 if all are equal. `evidence`: the same, and a leg weighs what it knows of the query: how far the dense "
        "leg's best document is above the corpus, and how much of the query's heaviest words the sparse leg's best "
        "document has. `zscore`: subtract the mean of all candidates and divide by their standard deviation; 0 "
        "if all are equal. `dbsf`, as in Qdrant: map three standard deviations below and above the mean of the leg's "
        "own candidates onto 0 and 1; 0.5 if all are equal, 0 for documents that the leg did not propose. `paper`: "
        "plain min-max over the leg's own candidates, 0 for the last, for a single one and for documents that the leg "
        "did not propose. Null: the bundle's, see `/info`.",
    )
    feedback: float | None = Field(
        default=None,
        ge=0,
        le=MAX_FEEDBACK,
        allow_inf_nan=False,
        description="After a first fusion, the query's vector moves towards that of the first document, by so much of "
        "it at most, and the dense leg scores the same candidates again. It moves less the fewer of the query's words "
        "this document has. 0: no feedback. Null: the bundle's, see `/info`; none with `paper`.",
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

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"query": "play music", "k": 5},
                {"query": "play music", "offset": 10, "candidates": 100, "fusion": {"method": "rrf"}},
                {"query": "player", "terms": [{"text": "music", "weight": 2.0}, {"text": "video", "weight": -0.5}]},
                {"query": "play music", "k": 3, "explain": True},
            ]
        }
    )

    query: str | None = Field(
        default=None,
        min_length=1,
        description="What to look for, in plain words. Null: list all documents that match `filter`, in the order of "
        "`sort`, or of writing; the request needs one of the two. `spelling`, `prefix`, `mode` and `fusion` then "
        "change nothing, and what orders hits by scores is refused.",
        examples=["play music"],
    )
    terms: list[QueryTerm] = Field(
        default_factory=list,
        max_length=100,
        description="Extra words of the query, with weights that may be negative.",
        json_schema_extra=_EMPTY,
    )
    k: int = Field(
        default=10, ge=1, description="Number of hits. `offset + k` must not exceed `candidates`, if that is given."
    )
    offset: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Hits to skip, for paging. Without a query, any number; with `sort` up to 100,000 with `k`, on a "
        "cluster 10,000.",
    )
    mode: Mode = Field(
        default="hybrid",
        description="The legs of weight above 0 fused, or one leg alone, whose own score is then `score`.",
    )
    task: str | None = Field(
        default=None,
        min_length=1,
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
    min_matched: Literal["strong", "weak"] | None = Field(
        default=None,
        description="Leave out candidates that match less well than this, see `matched` of hits, before they are "
        "ordered and counted for pages and facets; `unmatched` has their number. Documents that a rule pins stay, and "
        "so do all hits of head queries and of queries with a rule's synonyms, which are not judged. If a leg fails "
        "or is late, there is no answer.",
    )
    boosts: list[Boost] = Field(
        default_factory=list,
        max_length=10,
        description="Additions to the candidates' scores by the values of declared fields.",
        json_schema_extra=_EMPTY,
    )
    diversity: float = Field(
        default=0.0,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Above 0: order the candidates by maximal marginal relevance, so that hits differ from those above "
        "them. 1: only by their difference.",
    )
    sort: Sort | None = Field(
        default=None,
        description="Order all candidates by a field instead of their scores; without a query, all documents that "
        "match.",
    )
    rerank: bool | None = Field(
        default=None,
        description="Whether the service's reranking model orders the first candidates anew, if it has one, see "
        "`/info`. Null: if there is one, and `sort` and `diversity` are not used.",
    )
    group_by: str | None = Field(
        default=None,
        min_length=1,
        description="Document field whose equal values make a group, such as the document that a passage is from. "
        "Each hit is the best of its group, and `k` and `offset` count groups. A document without a value is alone.",
    )
    group_size: int = Field(default=1, ge=1, le=100, description="Most hits of a group, its best included.")
    facets: list[str] = Field(
        default_factory=list,
        max_length=20,
        description="Declared keyword fields whose values to count over all candidates of the legs; without a query, "
        "over all documents that match. A field has at most 10,000 different values there.",
        json_schema_extra=_EMPTY,
    )
    facet_ranges: dict[str, Annotated[list[Value], Field(max_length=100, fail_fast=True)]] = Field(
        default_factory=dict,
        max_length=20,
        description="Declared numbers and dates to count in ranges, over the same documents: by field, the edges of "
        "the ranges in ascending order. Of n edges there are n + 1 ranges, the first below the first edge; a range has "
        "its lower edge, not its upper one. All fields together have at most 100 edges.",
        json_schema_extra={"default": {}},
        examples=[{"year": [2000, 2010, 2020]}],
    )
    spelling: Literal["suggest", "auto"] | None = Field(
        default=None,
        description="Compare the query's words with those of the corpus, if `/info` has `spelling`. `suggest`: give a "
        "better spelt query as `did_you_mean`. `auto`: search for it, and give it as `searched`. Null: take the query "
        "as it is. The first 8 doubtful words of at least 3 letters are compared; `terms` are not.",
    )
    prefix: bool = Field(
        default=False,
        description="Complete the last word while someone types it: a beginning of at least 2 letters stands for all "
        "words of the corpus that begin so, at most 12, weighed by their frequency and by their nearness to the other "
        "words. `completions` has the query with each of them, `searched` with the likeliest.",
    )
    snippets: SnippetRequest | None = Field(
        default=None,
        description="For each hit, give the part of its text that matches the query best, with the query's words "
        "marked.",
        examples=[{"fields": ["text"], "length": 160}],
    )
    explain: bool = Field(
        default=False, description="For each hit, give the share of each leg and each query word in its scores."
    )

    @field_validator("query")
    @classmethod
    def _blank(cls, query: str | None) -> str | None:
        return None if query is None else _not_blank(query)


class BatchRequest(Model):
    """Several searches, accepted or refused as a whole. Each deadline counts from the batch's arrival."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"searches": [{"query": "play music", "k": 3}, {"query": "edit text"}]}]}
    )

    searches: list[SearchRequest] = Field(min_length=1, description="The answers have the same order.")


class EncodeRequest(Model):
    """A text to encode as a query."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "play music"}]})

    text: str = Field(min_length=1, description="The text.", examples=["play music"])
    task: str | None = Field(
        default=None, min_length=1, description="Name of the token table. Null: the bundle's default."
    )

    _blank = field_validator("text")(_not_blank)


class DocumentWrite(Model):
    """A document to write. Vector and impacts that are absent stay, as long as title and text do. If both are absent, a
    service with a model encodes another text."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"fields": {"title": "mpv", "text": "Plays music and films."}}]}
    )

    fields: dict[str, Any] = Field(description="All fields of the document, as in a line of a corpus, without `_id`.")
    vector: list[float] | None = Field(
        default=None,
        description="Its dense vector by the model of the bundle, with `dimension` values; it is "
        "scaled to the length 1.",
    )
    impacts: dict[str, int] | None = Field(
        default=None,
        description="Impacts by term of the bundle's vocabulary, such as a word's stem or a token id: at most 65,535, "
        "on a cluster 511 if the bundle has no larger ones.",
    )

    @field_validator("fields", mode="after")
    @classmethod
    def _without_id(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if "_id" in fields:
            raise ValueError("the id is that of the path: leave _id out")
        return fields

    @field_validator("vector", mode="before")
    @classmethod
    def _numbers(cls, vector: object) -> object:
        """Return one error for any number of wrong values."""
        for place, value in enumerate(vector if isinstance(vector, list) else []):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"value {place} is {value!r:.80}, expected a number")
        return vector

    @field_validator("impacts", mode="before")
    @classmethod
    def _whole_numbers(cls, impacts: object) -> object:
        for term, impact in (impacts if isinstance(impacts, dict) else {}).items():
            if isinstance(impact, bool) or not isinstance(impact, int):
                raise ValueError(f"the impact of {term!r:.80} is {impact!r:.80}, expected a whole number")
        return impacts


class DocumentLine(DocumentWrite):
    """A line of many: a document to write, as in `DocumentWrite`, or one to delete."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "mpv", "delete": True}]})

    id: str = Field(min_length=1, description="The document's id.")
    delete: bool = Field(default=False, description="Delete the document; the line then has no fields.")
    version: str | None = Field(default=None, description="The version that the document must have, as `If-Match`.")
    fields: dict[str, Any] = Field(
        default={}, description="All fields of a document to write, as in a line of a corpus, without `_id`."
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.delete and (self.fields or self.vector is not None or self.impacts is not None):
            raise ValueError("a line that deletes has neither fields, vector nor impacts")
        if not self.delete and not self.fields:
            raise ValueError("fields are required, unless delete is true")
        return self
