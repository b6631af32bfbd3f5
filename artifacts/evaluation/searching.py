"""The search engine as evaluation and training use it; the command line hands one in."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from lightretriever.artifacts.bundle.manifest import LegWeights
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dtypes import Float32Array

SearchMode: TypeAlias = Literal["dense", "sparse", "hybrid"]


@dataclass(frozen=True)
class Fusion:
    """How hybrid search joins the legs, by linear fusion in the terms of the API."""

    weights: LegWeights
    normalization: Literal["evidence", "range", "paper"] = "range"
    feedback: float = 0.0

    def request(self) -> dict[str, Any]:
        """The `fusion` of a search request; results are recorded with it."""
        weights = self.weights.model_dump()
        return {"method": "linear", "weights": weights, "normalization": self.normalization, "feedback": self.feedback}


@dataclass(frozen=True)
class QueryVectors:
    """A query as the legs take it. `terms` (t,) are different terms, `weights` (t,) float32 what they weigh;
    `dense` (D,) float32 has length 1, None where the query has no such vector."""

    terms: list[str]
    weights: Float32Array
    dense: Float32Array | None = None


class Searcher(Protocol):
    """Searches one bundle. Any number of threads may use it at once."""

    def search(
        self, query: str, *, task: str, mode: SearchMode, k: int, candidates: int, fusion: Fusion | None
    ) -> list[tuple[str, float]] | None:
        """The ids and scores of the best `k` documents of `candidates` from each leg, best first; None for a query that
        can't be encoded. Without `fusion`, the bundle's own is used."""

    def terms(self, query: str, task: str) -> QueryVectors | None:
        """The sparse query that the bundle makes of a text; None where the text has no term."""

    def with_vectors(self, queries: Mapping[str, QueryVectors]) -> "Searcher":
        """A searcher of the same indexes, as long as this one lasts, that takes the vectors of these texts alone."""


OpenSearcher: TypeAlias = Callable[[Bundle], AbstractContextManager[Searcher]]
