"""The protocol of the backends of a bundle, which search its legs together.

A *leg* is one way of ranking: it proposes documents with scores. A *backend* is the library that searches a leg. A
document's ordinal is its position in the order of writing, from 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from lightretriever.artifacts.dtypes import Float32Array, Int32Array, Int64Array
from lightretriever.artifacts.live.documents import LiveDocuments
from lightretriever.artifacts.sparse.index import Spelling
from lightretriever.service.execution.executor import Outcome
from lightretriever.service.schemas import ClusterFacts, LegName

if TYPE_CHECKING:
    from lightretriever.artifacts.sparse.index import ImpactIndex
    from lightretriever.service.backends.opensearch import ClusterDocuments

DocumentStore: TypeAlias = "ImpactIndex | ClusterDocuments"
"""The stored documents. Thread-safe."""

LegNames = Collection[LegName]
Ordinals = Int64Array
Scores = Float32Array

DocumentFilter = Any
"""The documents that match a condition, in a form that only the backends read: see `where` of the documents."""


class ScoredDocuments(NamedTuple):
    """Documents that a leg found: ordinals (m,) int64 and scores (m,) float32, best first, ties by ordinal."""

    ordinals: Ordinals
    scores: Scores


class QueryTokens(NamedTuple):
    """The tokens of a query in the dense leg: distinct `ids` (u,) int32, ascending, their `counts` (u,) int64, and
    their `weights` (u,) float32 in the sum of table rows."""

    ids: Int32Array
    counts: Int64Array
    weights: Float32Array


NO_ORDINALS: Final[Ordinals] = np.empty(0, np.int64)
NO_TOKENS: Final = QueryTokens(np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.float32))


@dataclass(slots=True)  # frozen would take several times as long to construct
class EncodedQuery:
    """A query as the legs read it; treat it as immutable.

    terms: distinct terms (t,) of the bundle's vocabulary, in the query's order. counts: (t,) int64, their occurrences.
    weights: (t,) float32, their weights in the sparse leg. tokens: those of the dense leg. dense: (D,) float32 of
    length 1, None if not requested, or if there are no tokens. head: whether a model read the query, or it is a
    document: its vector is then no sum over its tokens. text: the text whose words are the terms, where the search is
    to split it; there are no terms then. named: conditions of the documents that the query may be a name of.
    """

    terms: list[str]
    counts: Int64Array
    weights: Float32Array
    tokens: QueryTokens
    dense: Float32Array | None
    head: bool = False
    text: str | None = None
    named: Sequence[tuple[str, ...]] = ()

    @classmethod
    def of_model(cls, terms: Sequence[str], weights: Float32Array, dense: Float32Array | None) -> "EncodedQuery":
        """A query that a model encoded: weights of distinct terms (t,), and a vector (D,) of length 1, if any."""
        return cls(list(terms), np.ones(len(terms), np.int64), weights, NO_TOKENS, dense)

    @property
    def vector(self) -> Float32Array:
        """The dense vector (D,). ValueError if the query was encoded without one."""
        if self.dense is None:
            raise ValueError("the query was encoded without its dense vector")
        return self.dense


class ReadCandidates(NamedTuple):
    """Vectors and impacts of the candidates of both legs, read while they were searched.

    documents: (u,) int64, ascending. shares: (u, t) float32, each term's share of their sparse scores. vectors: (u, D)
    float32, as the index has them. dense: (u,) float32, their dense scores.
    """

    documents: Ordinals
    shares: Float32Array
    vectors: Float32Array
    dense: Scores


@dataclass(slots=True)
class LegResults:
    """The outcomes of the legs of a search, by leg.

    query: with its terms, where the backend splits its `text`. read: None unless the backend reads the candidates of
    both legs. named: (n,) int64, the documents that the query's conditions `named` hold for, those of the first
    condition first; none of one that holds for more than ten.
    """

    outcomes: dict[LegName, Outcome[ScoredDocuments]]
    query: EncodedQuery
    read: ReadCandidates | None = None
    named: Ordinals = field(default_factory=lambda: NO_ORDINALS)


class UnavailableError(Exception):
    """A cluster does not answer, refuses the service, or has lost the index or a shard of it."""


class DocumentsGoneError(Exception):
    """Documents, named by `ordinals`, were deleted since a leg found them."""

    def __init__(self, ordinals: Sequence[int]) -> None:
        super().__init__(f"{len(ordinals)} documents were deleted, such as {ordinals[0]}")
        self.ordinals = frozenset(ordinals)


class Backends(ABC):
    """Where a bundle is searched: on this machine, or on a cluster. Thread-safe. Times are those of `perf_counter`."""

    name: str
    """The library or server that reads the documents."""
    legs: dict[LegName, str]
    """What searches each leg: `faiss`, `lucene` or `opensearch`."""
    documents: DocumentStore
    splits_text = False
    """Whether a search of both legs takes a query with `text` in place of terms."""
    spellings: Spelling | None = None
    """How the documents spell their words, if that is indexed."""
    cluster: ClusterFacts | None = None
    """The cluster and its index, if the legs are on one."""
    live: LiveDocuments | None = None
    """The documents to be written, if they can be."""

    @property
    def problem(self) -> str | None:
        """What keeps searches from all documents as they are now."""
        return None if self.live is None else self.live.problem

    def probe(self) -> str | None:
        """Return the `problem` that there is now, which may need a look at the cluster."""
        return self.problem

    def present_index(self) -> str | None:
        """Name the cluster's index that is to be searched now; None on this machine."""
        return None

    def now(self) -> "Backends":
        """Return the backends of the documents as they are now, for a search to use to its end."""
        return self

    @abstractmethod
    def search(
        self, query: EncodedQuery, legs: LegNames, count: int, allowed: DocumentFilter | None, deadline: float
    ) -> LegResults:
        """Find the best `count` documents, 1 or more, or fewer, of those `allowed`, by these legs in parallel until
        `deadline`. A document's score depends on neither `count` nor `allowed`. Every leg gets an outcome."""

    @abstractmethod
    def scores(self, vector: Float32Array, ordinals: Ordinals) -> Scores:
        """Return the dense scores (m,) of given documents for a query's vector (D,), as a search gives them. ValueError
        for an unknown ordinal."""

    @abstractmethod
    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> Float32Array:
        """Return each term's share of the sparse scores of given documents, its weight times its impact: (m, t)
        float32. ValueError for an unknown ordinal."""

    @abstractmethod
    def vectors(self, ordinals: Ordinals) -> Float32Array:
        """Return the vectors of documents (m,) as the index has them, quantised or not: (m, D) float32."""

    def within(self, deadline: float) -> AbstractContextManager[None]:
        """End by `deadline` what this thread asks of the documents in the block, where that can be ended."""
        return nullcontext()

    def close(self) -> None:
        """Close the legs and the documents. Idempotent."""
        self.documents.close()
