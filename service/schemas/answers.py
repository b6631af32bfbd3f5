"""Models of answers: of searches, of documents, of errors, and the service's description of itself."""

from typing import Any, Literal

from pydantic import Field

from lightretriever.artifacts.documents.fields import FieldKind
from lightretriever.service.errors import FieldError
from lightretriever.service.schemas.requests import LegName, Matched, Mode, Model, Normalization, Weights


def optional(description: str = "", default: object = None) -> Any:
    """Return a field of an answer that is left out while it has its default."""
    return Field(default=default, exclude_if=lambda value: value == default, description=description or None)


class LegScore(Model):
    """A leg's score and rank of a hit."""

    score: float = Field(description="Dense: cosine. Sparse: sum of weight times impact over the query's terms.")
    rank: int | None = Field(description="Rank among the leg's candidates from 1, null if it did not propose the hit.")


class TermCount(Model):
    """A term of a query in the sparse leg."""

    term: str = Field(description="As the bundle's vocabulary has it: a word in its stem, or a token id.")
    text: str = Field(description="The same to read: of a token, the tokenizer's own spelling.")
    count: int = Field(description="Occurrences in the query; 0 if a document added the term.")
    weight: float = Field(description="Its weight in the sparse leg, by the bundle's `query_weights`, see `/info`.")


class TokenCount(Model):
    """A token of a query in the dense leg."""

    id: int
    token: str = Field(description="The tokenizer's own spelling.")
    count: int = Field(description="Occurrences in the query and in texts that count beside it.")
    weight: float = Field(description="Its weight in the sum of table rows.")


class TermShares(TermCount):
    """A term's share of a hit's sparse score."""

    impact: int | None = Field(description="Its impact in the document, 0 if the document lacks it.")
    sparse: float | None = Field(description="The word's share of the sparse score by this term: weight times impact.")
    added: bool = Field(description="Whether the document has the term by meaning alone.")


class TokenShares(TokenCount):
    """A token's share of a hit's dense score."""

    dense: float | None = Field(description="The word's share of the dense score by this token, which may be below 0.")


class WordShares(Model):
    """A query word's share of a hit's scores: the sum of those of the terms and tokens that begin in it. What several
    words have in common is shared out by their weights."""

    word: str = Field(description="As the query spells it.")
    count: int = Field(description="Occurrences in the query; 0 for a sign or an added term.")
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
    feedback: float | None = optional("What likeness to the first document adds; present with feedback.")


class Explanation(Model):
    """Why a hit has its scores."""

    fusion: FusionShares
    words: list[WordShares] = Field(description="In the query's order; the shares of a leg sum to its score.")
    coverage: float | None = optional("Share of the query's terms that title or text has, if it has any.")
    note: str | None = optional("What gives the order, if no words of a query do, or a rule put the hit first.")
    boosts: list[float] | None = optional("What each boost adds to the score; present with `boosts`.")


class Snippet(Model):
    """The part of a field's text that matches the query best."""

    text: str = Field(description="The part, verbatim, without escapes.")
    start: int = Field(description="Offset of the part in the field, in Unicode characters from 0.")
    marks: list[tuple[int, int]] = Field(description="Query words in the part: offsets of their beginnings and ends.")


class HitGroup(Model):
    """The candidates that share the hit's value of `group_by`."""

    value: str | int | float | bool | None = Field(description="Null: the hit has no such value, and is alone.")
    candidates: int = Field(description="Number of candidates in the group.")


class Hit(Model):
    """One document found."""

    id: str
    rank: int = Field(description="Rank among all hits from 1, `offset` included.")
    score: float = Field(description="Fused score, the leg's own score, or 0 without a query.")
    dense: LegScore | None = Field(description="Null if the dense leg was not searched or gave no score in time.")
    sparse: LegScore | None = Field(description="Null if the sparse leg was not searched or gave no score in time.")
    rerank: float | None = optional("Score by the reranking model; present if it read the hit.")
    matched: Matched | None = optional("How well the document matches; present if it was judged.")
    fields: dict[str, Any] = Field(description="The document's fields that the request asks for.")
    snippets: dict[str, Snippet] | None = optional("By field; present if the request has `snippets`.")
    explanation: Explanation | None = optional("Present if the request has `explain`.")
    group: HitGroup | None = optional("Present if the request has `group_by`.")


class Timings(Model):
    """Milliseconds per stage; null for a stage that did not run. The legs may run in parallel."""

    spelling: float | None = optional("Present if the request has `spelling` or `prefix`.")
    tokenize: float | None = None
    filter: float | None = optional("Present if the request has `filter` or `like`.")
    encode: float | None = Field(default=None, description="Making the query's vector; reading a document.")
    dense: float | None = None
    sparse: float | None = None
    rescore: float | None = Field(default=None, description="Scoring each leg's candidates in the other legs.")
    fuse: float | None = None
    rank: float | None = optional("Ordering, `rerank` included; present if more than scores order the hits.")
    rerank: float | None = optional("Present if a model reranked.")
    fetch: float | None = Field(default=None, description="Reading the documents.")
    snippets: float | None = optional("Present if the request has `snippets`.")
    facets: float | None = optional("Present if the request has `facets` or `facet_ranges`.")
    explain: float | None = optional("Present if the request has `explain`.")
    total: float = Field(description="From the arrival of the request, including waiting.")


class FacetCount(Model):
    """A value of a field, and the number of candidates that have it; without a query, of documents that match."""

    value: str
    count: int


class RangeCount(Model):
    """A range of a field's values, and the number of candidates that have a value in it; without a query, of documents
    that match."""

    gte: float | str | None = optional("From this value on; absent in the first range.")
    lt: float | str | None = optional("Below this value; absent in the last range.")
    count: int


class AddedSynonym(Model):
    """A text that a rule added to a query."""

    text: str
    weight: float = Field(description="How often its words count; a word of the query counts once.")


class AppliedRules(Model):
    """The rules that changed a search."""

    synonyms: list[AddedSynonym] = Field(description="Texts that count beside the query.")
    pinned: list[str] = Field(description="Ids of the documents that were put first, in their order.")
    hidden: int = Field(description="Number of documents that were left out if they exist.")


class SearchResponse(Model):
    """The hits of one search."""

    hits: list[Hit]
    degraded: list[LegName | Literal["rerank"]] = Field(description="Legs that failed or were late, or `rerank`.")
    mode: Mode
    task: str
    candidates: int = Field(description="Documents that the legs proposed; without a query, `total`.")
    total: int | None = optional("Number of all documents that match the filter; present without a query.")
    matched: Matched | None = optional("How well the best candidate matches; present if it was judged.")
    unjudged: str | None = optional("Why `matched` is missing.")
    searched: str | None = optional("What was searched for, if `prefix` or `spelling` changed it.")
    did_you_mean: str | None = optional("The query, better spelt.")
    excluded: list[str] | None = optional("The words of `-word` in the query, which documents must not have.")
    phrases: dict[str, bool] | None = optional("By phrase in quotes in the query, whether documents must have it.")
    completions: list[str] | None = optional("The query with what its last word may become, the likeliest first.")
    rules: AppliedRules | None = optional("Present if the service has rules, and some are for this query.")
    head_query: bool | None = optional("Whether the model itself read the query; present if the task has head queries.")
    facets: dict[str, list[FacetCount]] | None = optional("By field, the most frequent value first.")
    facet_ranges: dict[str, list[RangeCount]] | None = optional("By field, the ranges in ascending order.")
    timings_ms: Timings


class EncodeResponse(Model):
    """A text encoded as a query."""

    task: str
    dimension: int
    dense: list[float] = Field(description="Query vector of length 1; empty if only the sparse leg finds a term.")
    terms: list[TermCount] = Field(description="The terms of the sparse leg, in the text's order.")
    tokens: list[TokenCount] = Field(description="The tokens of the dense leg, by id.")
    head_query: bool | None = optional("As in the answer of a search.")
    timings_ms: Timings


class BatchResponse(Model):
    """The answers of a batch, in the order of its searches."""

    results: list[SearchResponse]


class Document(Model):
    """A stored document."""

    id: str
    fields: dict[str, Any]
    version: str | None = optional("Its version, for `If-Match`; present if the documents are on a cluster.")


class DocumentChange(Model):
    """The result for a document to write or to delete. Of many, "missing" is one to delete that was not there."""

    id: str
    result: Literal["created", "changed", "deleted", "missing", "refused"]
    version: str | None = optional("The version that the change made, for `If-Match`.")
    reason: str | None = optional("Why it is refused.")
    encoded: bool = optional("Present if the service's model encoded it.", default=False)
    cut: bool = optional("Present if the model read only its beginning, because it reads no more.", default=False)


class DocumentChanges(Model):
    """The results of many lines, in their order."""

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


class Problem(Model):
    """An error as in RFC 9457."""

    type: str = Field(description="Address that explains this kind of error.")
    title: str
    status: int
    detail: str = Field(description="What is wrong with this request, and the remedy.")
    instance: str = Field(description="Path of the request.")
    kind: str = Field(description="Short name of the kind of error, for programs.")
    request_id: str = Field(description="Also in the header X-Request-ID and in the log.")
    errors: list[FieldError] = Field(description="The fields at fault, if any.")


class Status(Model):
    """Answer of the health routes."""

    status: Literal["alive", "ready"]
    index: str | None = optional("The cluster's index that is searched; present if there is one.")
    warning: str | None = optional("What to do: many documents are written, or the file of rules can't be used.")


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
    query_weights: Literal["count", "idf_count"] = Field(description="A query token's weight: its count, or times IDF.")
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
    document_model: str | None = optional("The model that encodes written documents; present if the service has one.")
    default_task: str
    tasks: dict[str, str] = Field(description="Name and instruction of each token table.")
    head_queries: dict[str, int] = optional("By task, the number of queries that the model itself read.", default={})
    matched: dict[str, MatchLimits] = optional("By task, the thresholds of `matched` in answers.", default={})
    rerank_top: int | None = optional("Candidates that a reranking model, which is in the query path, reads.")
    modes: list[Mode] = Field(description="Without a dense leg `hybrid` and `sparse`, which are then the same.")
    examples: list[str] = optional("Queries to try, of the recipe or titles; absent if there are API keys.", default=[])
    fields: list[str] = Field(description="Document fields that a request may name.")
    spelling: bool = optional("Present if requests may have `spelling` and `prefix`.", default=False)
    filters: dict[str, FieldKind] = Field(description="Declared fields, which a filter may name.")
    limits: Limits
    versions: dict[str, str]
