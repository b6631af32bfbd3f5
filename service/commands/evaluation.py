"""The engine for evaluation and training: the service's own searches, optionally with queries that a model encoded."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.evaluation.searching import Fusion, QueryVectors, SearchMode
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.service.backends.base import EncodedQuery
from lightretriever.service.errors import UnsearchableError
from lightretriever.service.observability.metrics import StageClock
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.encoder import QueryEncoder
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.request import literal, read_operators
from lightretriever.service.settings import Settings

_SETTINGS: Final = Settings(
    deadline_ms=600_000.0,  # a late leg would silently change the result
    max_candidates=100_000,
    max_query_chars=10_000_000,
)


@contextmanager
def open_searcher(bundle: Bundle) -> Iterator["EngineSearcher"]:
    """Open a bundle for evaluation. Raises BundleError and JavaError."""
    start_jvm()  # with the heap to write an index for comparison
    with SearchEngine.open(bundle, _SETTINGS) as engine:
        yield EngineSearcher(engine)


class EngineSearcher:
    """Implements `artifacts.evaluation.searching.Searcher` with the serving engine."""

    def __init__(self, engine: SearchEngine) -> None:
        self._engine = engine

    def search(
        self, query: str, *, task: str, mode: SearchMode, k: int, candidates: int, fusion: Fusion | None
    ) -> list[tuple[str, float]] | None:
        """Search as the service does. A blank query, which the service refuses, can't be encoded."""
        if not query.strip():
            return None
        settings: dict[str, Any] = {} if fusion is None else {"fusion": fusion.request()}
        settings |= {"task": task, "mode": mode, "k": k, "candidates": candidates, "fields": [], "allow_partial": False}
        request = SearchRequest.model_validate({"query": literal(query), **settings})
        try:
            hits = self._engine.search(request).hits
        except UnsearchableError:
            return None
        return [(hit.id, hit.score) for hit in hits]

    def terms(self, query: str, task: str) -> QueryVectors | None:
        """Return the service's sparse query."""
        try:
            query_terms = self._engine.parts.encoder.encode(query, task, StageClock(), dense=False)
        except UnsearchableError:
            return None
        return QueryVectors(query_terms.terms, query_terms.weights)

    def with_vectors(self, queries: Mapping[str, QueryVectors]) -> "EngineSearcher":
        """Return a searcher that takes the encoded queries from `queries`, by text."""
        engine = self._engine
        by_text = {read_operators(literal(text)).text: query for text, query in queries.items()}
        parts = replace(engine.parts, encoder=_GivenQueries(engine.parts.encoder, by_text))
        return EngineSearcher(SearchEngine(engine.bundle, engine.settings, parts))


class _GivenQueries(QueryEncoder):
    """Looks up queries that a model encoded."""

    def __init__(self, base: QueryEncoder, queries: Mapping[str, QueryVectors]) -> None:
        super().__init__(base.tokenizer, base.tables, base.vocabulary)
        self._queries = queries

    def can_encode(self, text: str, task: str) -> bool:
        """Return whether a text is one of the queries, and has a vector."""
        return text in self._queries and super().can_encode(text, task)

    def encode(
        self, text: str, task: str, clock: StageClock, *, dense: bool = True, field: str = "query", **_: Any
    ) -> EncodedQuery:
        """Look up a text. UnsearchableError if the model's vector is zero."""
        query = self._queries[text]
        if dense and query.dense is None:
            reason = "the query model's vector of this text is zero, so no document is nearer than another"
            raise UnsearchableError.at(field, reason, text)
        return EncodedQuery.of_model(query.terms, query.weights, query.dense if dense else None)
