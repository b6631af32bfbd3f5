"""Models of answers, including errors."""

from typing import Any, Literal

from pydantic import Field

from lightretriever.service.schemas.base import LegName, Matched, Mode, Model

__all__ = [
    "AddedSynonym",
    "AppliedRules",
    "BatchResponse",
    "Document",
    "DocumentChange",
    "DocumentChanges",
    "DocumentDeleted",
    "DocumentTerm",
    "DocumentTerms",
    "DocumentWritten",
    "Explanation",
    "FacetCount",
    "FusionShares",
    "Hit",
    "HitGroup",
    "LegScore",
    "RangeCount",
    "SearchResponse",
    "Snippet",
    "TermCount",
    "TermShares",
    "Timings",
    "TokenCount",
    "TokenShares",
    "WordShares",
]


def _absent(value: object) -> bool:
    return value is None


class LegScore(Model):
    """A leg's score and rank of a hit."""

    score: float = Field(
        description="Dense: cosine. Sparse: sum over the query's terms of weight times the document's impact."
    )
    rank: int | None = Field(description="Rank among the leg's candidates from 1, null if it did not propose the hit.")


class TermCount(Model):
    """A term of a query in the sparse leg."""

    term: str = Field(description="As the bundle's vocabulary has it: a word in its stem, or a token id.")
    text: str = Field(description="The same to read: of a token, the tokenizer's own spelling.")
    count: int = Field(
        description="Occurrences in the query and its `terms`, regardless of their weights; 0 if the model added the "
        "term to a head query."
    )
    weight: float = Field(description="Its weight in the sparse leg, by the bundle's `query_weights`, see `/info`.")


class TokenCount(Model):
    """A token of a query in the dense leg."""

    id: int
    token: str = Field(description="The tokenizer's own spelling.")
    count: int = Field(description="Occurrences in the query and its `terms`, regardless of their weights.")
    weight: float = Field(description="Its weight in the sum of table rows.")


class TermShares(TermCount):
    """A term's share of a hit's sparse score."""

    impact: int | None = Field(description="Its impact in the document, 0 if the document lacks it.")
    sparse: float | None = Field(description="The word's share of the sparse score by this term: weight times impact.")
    added: bool = Field(
        description="Whether the document has the term by meaning alone: it has an impact, and title and text lack it."
    )


class TokenShares(TokenCount):
    """A token's share of a hit's dense score."""

    dense: float | None = Field(description="The word's share of the dense score by this token, which may be below 0.")


class WordShares(Model):
    """A query word's share of a hit's scores: the sum of those of the terms and tokens that begin in it. What several
    words have in common is shared out by their weights."""

    word: str = Field(description="As the query spells it.")
    count: int = Field(
        description="Occurrences in the query and its `terms`; 0 for a sign, and for a term that a model added."
    )
    dense: float | None = Field(description="Its share of the dense score; null if that is not explained.")
    sparse: float | None = Field(description="Its share of the sparse score; null if that is not explained.")
    added: bool = Field(description="Whether the document has one of its terms by meaning alone.")
    terms: list[TermShares]
    tokens: list[TokenShares]


class FusionShares(Model):
    """Each leg's share of a hit's score; null for a leg that was not searched. With `boosts`, if there are any, the
    shares sum to the score."""

    dense: float | None = None
    sparse: float | None = None
    feedback: float | None = Field(
        default=None,
        exclude_if=_absent,
        description="What it adds that the document is like the first one of the first fusion; present with feedback.",
    )


class Explanation(Model):
    """Why a hit has its scores."""

    fusion: FusionShares
    words: list[WordShares] = Field(
        description="In the query's order. The shares of a leg sum to its score; null if the leg was not searched or "
        "gave no shares in time. A head query's shares of the dense score are null: its vector is no sum over tokens."
    )
    coverage: float | None = Field(
        default=None,
        exclude_if=_absent,
        description="Share of the query's terms of positive weight that title or text has, whatever their forms. "
        "Absent if the query has none.",
    )
    note: str | None = Field(
        default=None,
        exclude_if=_absent,
        description="Says that there is no query, and what gives the order, or that a rule put the hit first; present "
        "then.",
    )
    boosts: list[float] | None = Field(
        default=None,
        exclude_if=_absent,
        description="What each boost of the request adds to the score; present if it has `boosts`.",
    )


class Snippet(Model):
    """The part of a field's text that matches the query best."""

    text: str = Field(description="The part, verbatim, without escapes.")
    start: int = Field(description="Offset of the part in the field, in Unicode characters from 0.")
    marks: list[tuple[int, int]] = Field(
        description="Query words in the part: offsets of the first character and of the one after the last."
    )


class Hit(Model):
    """One document found."""

    id: str
    rank: int = Field(description="Rank among all hits from 1, `offset` included.")
    score: float = Field(
        description="Fused score; in modes other than `hybrid`, the leg's own score; without a query, 0."
    )
    dense: LegScore | None = Field(description="Null if the dense leg was not searched or gave no score in time.")
    sparse: LegScore | None = Field(description="Null if the sparse leg was not searched or gave no score in time.")
    rerank: float | None = Field(
        default=None, exclude_if=_absent, description="Score by the reranking model; present if it read the hit."
    )
    matched: Matched | None = Field(
        default=None,
        exclude_if=_absent,
        description="How well the document matches, by its dense score and the query's words that it has; present if "
        "the answer has `matched` and the hit a dense score.",
    )
    fields: dict[str, Any] = Field(description="The document's fields that the request asks for.")
    snippets: dict[str, Snippet] | None = Field(
        default=None, exclude_if=_absent, description="By field; present if the request has `snippets`."
    )
    explanation: Explanation | None = Field(
        default=None, exclude_if=_absent, description="Present if the request has `explain`."
    )
    group: "HitGroup | None" = Field(
        default=None, exclude_if=_absent, description="Present if the request has `group_by`."
    )


class HitGroup(Model):
    """The candidates that share the hit's value of `group_by`."""

    value: str | int | float | bool | None = Field(description="Null: the hit has no such value, and is alone.")
    candidates: int = Field(description="Number of candidates in the group.")
    hits: list[Hit] = Field(
        description="The next best of the group, up to `group_size` with the hit itself; `rank` is the rank in the "
        "group."
    )


Hit.model_rebuild()


class Timings(Model):
    """Milliseconds per stage; null for a stage that did not run. The legs may run in parallel."""

    spelling: float | None = Field(
        default=None, exclude_if=_absent, description="Present if the request has `spelling` or `prefix`."
    )
    tokenize: float | None = None
    filter: float | None = Field(default=None, exclude_if=_absent, description="Present if the request has `filter`.")
    encode: float | None = Field(
        default=None, description="Summing the tokens' table rows, weighted by count, and normalising the sum."
    )
    dense: float | None = None
    sparse: float | None = None
    rescore: float | None = Field(default=None, description="Scoring each leg's candidates in the other legs.")
    fuse: float | None = None
    rank: float | None = Field(
        default=None,
        exclude_if=_absent,
        description="Reading what the order depends on, and ordering, `rerank` included; present if the request has "
        "`boosts`, `diversity`, `sort` or `group_by`, or no query, or a model reranked.",
    )
    rerank: float | None = Field(default=None, exclude_if=_absent, description="Present if a model reranked.")
    fetch: float | None = Field(default=None, description="Reading the documents.")
    snippets: float | None = Field(
        default=None, exclude_if=_absent, description="Present if the request has `snippets`."
    )
    facets: float | None = Field(
        default=None, exclude_if=_absent, description="Present if the request has `facets` or `facet_ranges`."
    )
    explain: float | None = Field(default=None, exclude_if=_absent, description="Present if the request has `explain`.")
    total: float = Field(description="From the arrival of the request, including waiting.")


class FacetCount(Model):
    """A value of a field, and the number of candidates that have it; without a query, of documents that match."""

    value: str
    count: int


class RangeCount(Model):
    """A range of a field's values, and the number of candidates that have a value in it; without a query, of documents
    that match."""

    gte: float | str | None = Field(
        default=None, exclude_if=_absent, description="From this value on; absent in the first range."
    )
    lt: float | str | None = Field(
        default=None, exclude_if=_absent, description="Below this value; absent in the last range."
    )
    count: int


class AddedSynonym(Model):
    """A text that a rule added to a query."""

    text: str
    weight: float = Field(description="How often it counts, as in `terms`.")


class AppliedRules(Model):
    """The rules that changed a search."""

    synonyms: list[AddedSynonym] = Field(description="Texts that count beside the query.")
    pinned: list[str] = Field(description="Ids of the documents that were put first, in their order.")
    hidden: int = Field(description="Number of documents that were left out if they exist.")


class SearchResponse(Model):
    """The hits of one search."""

    hits: list[Hit]
    degraded: list[LegName | Literal["rerank"]] = Field(
        description="Legs missing from this ranking, because they failed or were late; `rerank`: the reranking model."
    )
    mode: Mode
    task: str
    candidates: int = Field(
        description="Number of distinct documents that the legs proposed; without a query, `total`."
    )
    total: int | None = Field(
        default=None,
        exclude_if=_absent,
        description="Number of all documents that match the filter; present without a query.",
    )
    matched: Matched | None = Field(
        default=None,
        exclude_if=_absent,
        description="How well the best candidate matches, by the thresholds of the dense score in `/info` and, where "
        "the terms are words and the sparse leg was searched, by the query's words that it has: `none` if words drawn "
        "at random score as high. Present if the task has thresholds and the dense leg was searched, but not for head "
        "queries, nor with `terms` or synonyms of a rule.",
    )
    unmatched: int | None = Field(
        default=None,
        exclude_if=_absent,
        description="Number of `candidates` that `min_matched` left out, which no page and no facet has; present if "
        "the request has it, and the answer was judged.",
    )
    searched: str | None = Field(
        default=None,
        exclude_if=_absent,
        description="The text that was searched for in its place; present if `prefix` or `spelling` changed it.",
    )
    did_you_mean: str | None = Field(
        default=None,
        exclude_if=_absent,
        description="The query, better spelt; present if the request has `spelling: suggest`, and the corpus has "
        "words like those of the query that it lacks.",
    )
    completions: list[str] | None = Field(
        default=None,
        exclude_if=_absent,
        description="The query with what its last word may become, the likeliest first, at most 12; present if the "
        "request has `prefix` and the last word has completions.",
    )
    rules: AppliedRules | None = Field(
        default=None,
        exclude_if=_absent,
        description="Present if the service has rules, and some are for this query.",
    )
    head_query: bool | None = Field(
        default=None,
        exclude_if=_absent,
        description="Whether the model itself read the query when the bundle was built; if not, the token table "
        "encoded it. Present if the task has head queries.",
    )
    facets: dict[str, list[FacetCount]] | None = Field(
        default=None,
        exclude_if=_absent,
        description="By field, the most frequent value first; present if the request has `facets`.",
    )
    facet_ranges: dict[str, list[RangeCount]] | None = Field(
        default=None,
        exclude_if=_absent,
        description="By field, the ranges in ascending order; present if the request has `facet_ranges`.",
    )
    timings_ms: Timings


class BatchResponse(Model):
    """The answers of a batch, in the order of its searches."""

    results: list[SearchResponse]


class Document(Model):
    """A stored document."""

    id: str
    fields: dict[str, Any]
    version: str | None = Field(
        default=None,
        exclude_if=_absent,
        description="Its version, for `If-Match`; present if the documents are on a cluster.",
    )


class DocumentWritten(Model):
    """A document that was written."""

    id: str
    created: bool = Field(description="Whether no document had this id before.")
    version: str = Field(description="Its version, for `If-Match`.")
    encoded: bool = Field(
        default=False,
        exclude_if=lambda encoded: not encoded,
        description="Present if the service's model encoded it.",
    )
    cut: bool = Field(
        default=False,
        exclude_if=lambda cut: not cut,
        description="Present if the model read only its beginning, because it reads no more.",
    )


class DocumentDeleted(Model):
    """A document that was deleted."""

    id: str


class DocumentChange(Model):
    """What became of a line: "created", "changed" or "deleted" with the version that this made, "missing" if there was
    nothing to delete, and "refused" with the reason."""

    id: str
    result: Literal["created", "changed", "deleted", "missing", "refused"]
    version: str | None = Field(default=None, exclude_if=lambda version: version is None)
    reason: str | None = Field(default=None, exclude_if=lambda reason: reason is None)
    encoded: bool = Field(
        default=False,
        exclude_if=lambda encoded: not encoded,
        description="Present if the service's model encoded it.",
    )
    cut: bool = Field(
        default=False,
        exclude_if=lambda cut: not cut,
        description="Present if the model read only its beginning, because it reads no more.",
    )


class DocumentChanges(Model):
    """What became of many lines, in their order."""

    results: list[DocumentChange]


class DocumentTerm(Model):
    """A term of a document in the sparse index."""

    term: str = Field(description="As the bundle's vocabulary has it: a word in its stem, or a token id.")
    text: str = Field(description="The same to read: of a token, the tokenizer's own spelling.")
    impact: int
    in_text: bool = Field(description="Whether title or text has it; if not, the encoder added it.")


class DocumentTerms(Model):
    """A document's terms in the sparse index."""

    id: str
    terms: list[DocumentTerm] = Field(description="By descending impact.")
