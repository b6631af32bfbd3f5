"""What is answered, errors too."""

from typing import Any

from lightretriever.service.schemas.base import LegName, Mode, Model
from pydantic import Field

__all__ = [
    "BatchResponse",
    "Document",
    "DocumentTerm",
    "DocumentTerms",
    "EncodeResponse",
    "EncodeTimings",
    "Explanation",
    "FacetCount",
    "FieldProblem",
    "FusionShares",
    "Hit",
    "LegScore",
    "Problem",
    "SearchResponse",
    "Snippet",
    "Timings",
    "TokenCount",
    "TokenShares",
]


class LegScore(Model):
    """What a leg says about a hit."""

    score: float = Field(description="Dense: cosine. Sparse: sum of the token's weight times the document's impact.")
    rank: int | None = Field(description="Rank among the leg's candidates from 1, null if it did not propose the hit.")


class TokenShares(Model):
    """What a token of the query adds to a hit's scores."""

    id: int
    token: str = Field(description="The tokenizer's own spelling.")
    count: int = Field(description="How often it occurs in the query and its `terms`, whatever their weights are.")
    weight: float = Field(description="Its weight in the sparse query.")
    impact: int | None = Field(description="Its impact in the document, 0 where the document lacks it.")
    dense: float | None = Field(description="Its share of the dense score, which may be below 0.")
    sparse: float | None = Field(description="Its share of the sparse score: weight times impact.")


class FusionShares(Model):
    """What each leg adds to a hit's score; null for a leg that was not searched. They sum to the score."""

    dense: float | None = None
    sparse: float | None = None


class Explanation(Model):
    """Why a hit has its scores."""

    fusion: FusionShares
    tokens: list[TokenShares] = Field(
        description="By id. The shares of a leg sum to its score; null where the leg was not searched, or did not say "
        "in time."
    )


def _absent(value: object) -> bool:
    return value is None


class Snippet(Model):
    """The part of a field's text that has most of the query."""

    text: str = Field(description="The part, as it stands in the field. Nothing is escaped or added.")
    start: int = Field(description="The place in the field at which it begins. Places count Unicode characters from 0.")
    marks: list[tuple[int, int]] = Field(
        description="Where words of the query stand in the part: from which character, and up to which."
    )


class Hit(Model):
    """One document found."""

    id: str
    rank: int = Field(description="Rank among all hits from 1, `offset` included.")
    score: float = Field(description="Fused score; in every other mode than `hybrid` the score of that leg.")
    dense: LegScore | None = Field(description="Null where the dense leg was not searched or gave no score in time.")
    sparse: LegScore | None = Field(description="Null where the sparse leg was not searched or gave no score in time.")
    fields: dict[str, Any] = Field(description="The document's fields, those that were asked for.")
    snippets: dict[str, Snippet] | None = Field(
        default=None, exclude_if=_absent, description="By field; there if the request has `snippets`."
    )
    explanation: Explanation | None = Field(
        default=None, exclude_if=_absent, description="There if the request has `explain`."
    )


class Timings(Model):
    """Milliseconds per stage; null where a stage did not take place. The legs run at the same time."""

    tokenize: float | None = None
    filter: float | None = Field(default=None, exclude_if=_absent, description="There if the request has `filter`.")
    encode: float | None = Field(
        default=None, description="Sum of the tokens' table rows, each as often as it counts, normalised."
    )
    dense: float | None = None
    sparse: float | None = None
    bm25: float | None = Field(default=None, exclude_if=_absent, description="There in mode `bm25`.")
    rescore: float | None = Field(default=None, description="Each leg's score for the other's candidates.")
    fuse: float | None = None
    fetch: float | None = Field(default=None, description="Reading the documents.")
    snippets: float | None = Field(default=None, exclude_if=_absent, description="There if the request has `snippets`.")
    facets: float | None = Field(default=None, exclude_if=_absent, description="There if the request has `facets`.")
    explain: float | None = Field(default=None, exclude_if=_absent, description="There if the request has `explain`.")
    total: float = Field(description="From the arrival of the request, waiting included.")


class FacetCount(Model):
    """A value of a field, and how many of the candidates have it."""

    value: str
    count: int


class SearchResponse(Model):
    """The hits of one search."""

    hits: list[Hit]
    degraded: list[LegName] = Field(description="Legs that failed or were late and are missing in this ranking.")
    mode: Mode
    task: str
    candidates: int = Field(description="Different documents the legs proposed together.")
    facets: dict[str, list[FacetCount]] | None = Field(
        default=None,
        exclude_if=_absent,
        description="By field, the most frequent value first; there if the request has `facets`.",
    )
    timings_ms: Timings


class BatchResponse(Model):
    """The answers of a batch, in the order of its searches."""

    results: list[SearchResponse]


class TokenCount(Model):
    """A token of the text."""

    id: int
    token: str = Field(description="The tokenizer's own spelling.")
    count: int = Field(description="How often it occurs.")
    weight: float = Field(description="Its weight in the sparse query, by the bundle's `query_weights`, see `/info`.")


class EncodeTimings(Model):
    """Milliseconds per stage."""

    tokenize: float
    encode: float
    total: float


class EncodeResponse(Model):
    """A text as both legs see it."""

    task: str
    dimension: int
    dense: list[float] = Field(description="Query vector of length 1.")
    tokens: list[TokenCount] = Field(description="By id.")
    timings_ms: EncodeTimings


class Document(Model):
    """A stored document."""

    id: str
    fields: dict[str, Any]


class DocumentTerm(Model):
    """A term of a document in the sparse index."""

    id: int
    token: str = Field(description="The tokenizer's own spelling.")
    impact: int
    in_text: bool = Field(description="Whether title and text have it; where not, the encoder added it.")


class DocumentTerms(Model):
    """What the sparse side knows of a document."""

    id: str
    terms: list[DocumentTerm] = Field(description="By descending impact.")


class FieldProblem(Model):
    """What is wrong with one field."""

    field: str = Field(description="Path of the field, as in `fusion.weights.dense`.")
    message: str
    value: str | int | float | bool | None = Field(default=None, description="What was found there, shortened.")


class Problem(Model):
    """An error, as RFC 9457 has it."""

    type: str = Field(description="Where this kind of error is explained.")
    title: str
    status: int
    detail: str = Field(description="What is wrong with this very request, and what to do about it.")
    instance: str = Field(description="Path of the request.")
    kind: str = Field(description="Short name of the kind of error, for programs.")
    request_id: str = Field(description="Also in the header X-Request-ID and in the log.")
    errors: list[FieldProblem] = Field(description="The fields at fault, if any.")
