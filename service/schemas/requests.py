"""Models of requests. JSON types are not converted: "5" is not a number.

Conditions of a filter are on declared fields of the documents:

{"field": "year", "gte": 2019, "lt": 2024}
{"and": [{"field": "source", "in": ["wiki", "news"]}, {"not": {"field": "draft", "eq": true}}]}
"""

from datetime import date
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

from lightretriever.artifacts.documents.bounds import MAX_FEEDBACK

LegName = Literal["dense", "sparse"]
"""A way of ranking documents. `hybrid` fuses those whose weight is above 0."""

Mode = Literal["hybrid", "dense", "sparse"]

Matched = Literal["strong", "weak", "none"]
"""How well a document matches, by the thresholds of the dense score that the bundle has, and by the query's words."""

Normalization = Literal["evidence", "range", "paper"]
"""How to map a leg's scores before adding them, see `service.search.fusion`."""

Plain = dict[str, Any]
"""An answer, or a part of it, with the keys of its model in their order: not validated on its way out."""


class Model(BaseModel):
    """Base of all models: no unknown fields, no type conversion, no infinite numbers, immutable. The text below a field
    is its description."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def _plain(value: object) -> object:
    """Raise one error where the union would give one for each of its members."""
    if not isinstance(value, str | bool | int | float | date):
        several = "; in takes several" if isinstance(value, list) else ""
        raise ValueError(f"expected a text, a number, true or false{several}")
    return value.isoformat() if isinstance(value, date) else value


Value = Annotated[str | bool | int | float, BeforeValidator(_plain)]
"""A value of a declared field."""

_BOUNDS = ("gt", "gte", "lt", "lte")

TAGS: Final = frozenset({"(and)", "(or)", "(not)", "(condition)"})
"""The kinds of filters, as pydantic puts them into the path of an error."""


class _Operator(Model):
    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)


class And(_Operator):
    """All of the conditions hold."""

    and_: list["Filter"] = Field(alias="and", min_length=1, max_length=1000, fail_fast=True)


class Or(_Operator):
    """At least one of the conditions holds."""

    or_: list["Filter"] = Field(alias="or", min_length=1, max_length=1000, fail_fast=True)


class Not(_Operator):
    """The condition does not hold."""

    not_: "Filter" = Field(alias="not")


class Condition(_Operator):
    """A condition on a field: `eq`, `in`, bounds, or `exists`. If a document has several values, one has to match."""

    field: str
    """Name of a declared field, see `filters` in `/info`."""
    eq: Value | None = None
    """Equal to this value. A date without a time is its whole day."""
    in_: list[Value] | None = Field(default=None, alias="in", min_length=1, max_length=1000, fail_fast=True)
    """Equal to one of these values."""
    gt: Value | None = None
    """Greater than this value; numbers and dates only. Of a date without a time: after that day."""
    gte: Value | None = None
    """Greater than or equal to this value."""
    lt: Value | None = None
    """Less than this value."""
    lte: Value | None = None
    """Less than or equal to this value. Of a date without a time: to the end of that day."""
    exists: bool | None = None
    """The field has a value (true) or none (false)."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        bounds = [name for name in _BOUNDS if getattr(self, name) is not None]
        tests = [name for name in ("eq", "in_", "exists") if getattr(self, name) is not None]
        if len(tests) + bool(bounds) != 1:
            raise ValueError("give one of: eq, in, exists, or bounds (gt, gte, lt, lte)")
        for pair in (("gt", "gte"), ("lt", "lte")):
            if set(pair) <= set(bounds):
                raise ValueError(f"give {pair[0]} or {pair[1]}, not both")
        return self


def _kind(value: Any) -> str:
    names = value if isinstance(value, dict) else getattr(value, "model_fields_set", ())
    return next((f"({name})" for name in ("and", "or", "not") if name in names or f"{name}_" in names), "(condition)")


Filter = Annotated[
    Annotated[And, Tag("(and)")]
    | Annotated[Or, Tag("(or)")]
    | Annotated[Not, Tag("(not)")]
    | Annotated[Condition, Tag("(condition)")],
    Discriminator(_kind),
]

for _model in (And, Or, Not):
    _model.model_rebuild()

# pydantic deep-copies a list default for every request, and leaves a `default_factory` out of the JSON schema.
_EMPTY: Final[dict[str, Any]] = {"default": []}


class Weights(Model):
    """Weight of each leg. A leg with weight 0 is not searched."""

    dense: float = Field(ge=0, le=1000)
    """Weight of the dense leg."""
    sparse: float = Field(ge=0, le=1000)
    """Weight of the sparse leg."""

    @model_validator(mode="after")
    def _not_all_zero(self) -> Self:
        if not (self.dense or self.sparse):
            raise ValueError("one of the weights must be above 0")
        return self


class LinearFusion(Model):
    """Weighted sum of normalised scores: `score = sum of weight * n(score of the leg)`."""

    method: Literal["linear"] = "linear"
    weights: Weights | None = None
    """Null: the bundle's weights, see `/info`."""
    normalization: Normalization | None = None
    """How to map a leg's scores before adding them. Null: the bundle's way, see `/info`."""
    feedback: float | None = Field(default=None, ge=0, le=MAX_FEEDBACK)
    """How far the query's vector moves towards the first document's. Null: see `/info`."""


class RrfFusion(Model):
    """Reciprocal rank fusion: `score = sum of weight / (rank_constant + rank)`, ranks counted from 1."""

    method: Literal["rrf"]
    weights: Weights = Weights(dense=1.0, sparse=1.0)
    rank_constant: float = Field(default=60.0, ge=0, le=1_000_000)
    """60 in the literature."""


Fusion = Annotated[LinearFusion | RrfFusion, Field(discriminator="method")]


_Text = Annotated[str, Field(min_length=1, pattern=r"\S")]  # not white space alone


class Boost(Model):
    """Adds to the scores of candidates by the value of a declared field: give `half_life` or `scale`.

    With `half_life`: `weight * 0.5 ** (distance of the value to origin / half_life)`. With `scale`:
    `weight * min(1, log(1 + value) / log(1 + scale))`, for values above 0. Documents without a value get nothing; of
    several values, the one that adds most counts.
    """

    field: str = Field(min_length=1, examples=["year"])
    """A declared number or date."""
    weight: float = Field(ge=-1000, le=1000)
    """The most that is added, or below 0 taken away."""
    half_life: float | None = Field(default=None, gt=0)
    """Distance at which half of the weight is left; days if the field is a date."""
    origin: float | str | None = None
    """Where the whole weight is added, for `half_life`: a number, or a date. Null: now, for a date."""
    scale: float | None = Field(default=None, gt=0)
    """Number from which on the whole weight is added."""

    @field_validator("origin", mode="before")
    @classmethod
    def _number_or_date(cls, origin: object) -> object:
        """Return one error where a union would give one for each of its members."""
        if origin is not None and (isinstance(origin, bool) or not isinstance(origin, int | float | str)):
            raise ValueError("expected a number or a date")
        return origin

    @model_validator(mode="after")
    def _one_shape(self) -> Self:
        if (self.half_life is None) == (self.scale is None):
            raise ValueError("give half_life or scale, one of the two")
        if self.scale is not None and self.origin is not None:
            raise ValueError("origin belongs to half_life")
        return self


class Sort(Model):
    """Orders the candidates by a declared field. Ties keep the order of scores; documents without a value come last."""

    field: str = Field(min_length=1, examples=["year"])
    """A declared field."""
    order: Literal["asc", "desc"] = "desc"
    """Ascending or descending. Of several values, the first in this order counts."""


class SnippetRequest(Model):
    """The snippets to make."""

    fields: list[str] = Field(default=["title", "text"], min_length=1, max_length=20)
    """Text fields; they need not be among the returned `fields`."""
    length: int = Field(default=200, ge=20, le=2000)
    """Most characters of a snippet."""


class SearchRequest(Model):
    """One search."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"query": "play music", "k": 5},
                {"query": "play music", "offset": 10, "candidates": 100, "fusion": {"method": "rrf"}},
                {"query": "play music", "k": 3, "explain": True},
            ]
        }
    )

    query: _Text | None = Field(default=None, examples=["play music"])
    """What to look for; `-word` excludes documents. Null: see `like`, or list by `filter` and `sort`."""
    like: str | None = Field(default=None, min_length=1)
    """Id of a document, in place of `query`. Finds others that are like it."""
    k: int = Field(default=10, ge=1)
    """Number of hits. `offset + k` must not exceed `candidates`, if that is given."""
    offset: int = Field(default=0, ge=0, le=2**31 - 1)
    """Hits to skip, for paging."""
    mode: Mode = "hybrid"
    """The legs fused, or one leg alone."""
    task: str | None = Field(default=None, min_length=1)
    """Name of the token table that encodes the query. Null: the default, see `/info`."""
    fusion: Fusion = LinearFusion()
    """How to combine the legs in mode `hybrid`."""
    candidates: int | None = Field(default=None, ge=1)
    """Documents that each leg proposes. Null: as many as `offset + k` needs."""
    fields: list[str] | None = Field(default=None, max_length=100)
    """Document fields to return, see `/info`. Null: all. []: none."""
    deadline_ms: float | None = Field(default=None, gt=0)
    """Time limit in milliseconds, at most the service's own."""
    allow_partial: bool = True
    """If a leg fails or is late: answer with the others (true), or with an error (false)."""
    filter: Filter | None = Field(default=None, examples=[{"field": "year", "gte": 2019}])
    """Condition that restricts all legs to matching documents."""
    boosts: list[Boost] = Field(default_factory=list, max_length=10, json_schema_extra=_EMPTY)
    """Additions to the candidates' scores by the values of declared fields."""
    sort: Sort | None = None
    """Order all candidates by a field instead of their scores."""
    rerank: bool | None = None
    """Whether the service's reranking model orders the first candidates anew. Null: if there is one."""
    group_by: str | None = Field(default=None, min_length=1)
    """Document field whose equal values make a group: each hit is the best of its group."""
    facets: list[str] = Field(default_factory=list, max_length=20, json_schema_extra=_EMPTY)
    """Declared keyword fields whose values to count over all candidates."""
    facet_ranges: dict[str, Annotated[list[Value], Field(max_length=100, fail_fast=True)]] = Field(
        default_factory=dict, max_length=20, json_schema_extra={"default": {}}, examples=[{"year": [2000, 2010, 2020]}]
    )
    """Edges of ranges, ascending, in which to count declared numbers and dates; at most 100 in all."""
    spelling: Literal["suggest", "auto"] | None = None
    """Correct the words by those of the corpus: as `did_you_mean`, or by searching (auto)."""
    prefix: bool = False
    """Complete the last word, as someone types it."""
    snippets: SnippetRequest | None = Field(default=None, examples=[{"fields": ["text"], "length": 160}])
    """For each hit, give the part of its text that matches best."""
    explain: bool = False
    """For each hit, give each leg's and each word's share of its scores."""


class BatchRequest(Model):
    """Several searches, accepted or refused as a whole. Each deadline counts from the batch's arrival."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"searches": [{"query": "play music", "k": 3}, {"query": "edit text"}]}]}
    )

    searches: list[SearchRequest] = Field(min_length=1)
    """The answers have the same order."""


class EncodeRequest(Model):
    """A text to encode as a query."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"text": "play music"}]})

    text: _Text = Field(examples=["play music"])
    """The text."""
    task: str | None = Field(default=None, min_length=1)
    """Name of the token table. Null: the bundle's default."""


class DocumentWrite(Model):
    """A document to write. Vector and impacts that are absent stay, as long as title and text do. If both are absent, a
    service with a model encodes another text."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"fields": {"title": "mpv", "text": "Plays music and films."}}]}
    )

    fields: dict[str, Any]
    """All fields of the document, as in a line of a corpus, without `_id`."""
    vector: Annotated[list[float], Field(fail_fast=True)] | None = None
    """Its dense vector by the model of the bundle; it is scaled to the length 1."""
    impacts: dict[str, int] | None = None
    """Impacts by term of the bundle's vocabulary: at most 65,535, on a cluster 511."""

    @field_validator("fields", mode="after")
    @classmethod
    def _without_id(cls, fields: dict[str, Any]) -> dict[str, Any]:
        if "_id" in fields:
            raise ValueError("the id is that of the path: leave _id out")
        return fields


class DocumentLine(DocumentWrite):
    """A line of many: a document to write, as in `DocumentWrite`, or one to delete."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": "mpv", "delete": True}]})

    id: str = Field(min_length=1)
    """The document's id."""
    delete: bool = False
    """Delete the document; the line then has no fields."""
    version: str | None = None
    """The version that the document must have, as `If-Match`."""
    fields: dict[str, Any] = Field(default={})
    """All fields of a document to write, as in a line of a corpus, without `_id`."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.delete and (self.fields or self.vector is not None or self.impacts is not None):
            raise ValueError("a line that deletes has neither fields, vector nor impacts")
        if not self.delete and not self.fields:
            raise ValueError("fields are required, unless delete is true")
        return self
