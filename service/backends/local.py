"""The legs of a bundle on this machine, and its backends, which search them: Faiss and Lucene at the same time."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dense.index import DenseIndex, best_first, products
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.sparse.index import FoundImpacts, ImpactIndex, Spelling
from lightretriever.artifacts.sparse.jvm import DEFAULT_HEAP_MB, SEARCH_HEAP_MB, start_jvm
from lightretriever.artifacts.sparse.vocabulary import Language
from lightretriever.service.backends.base import (
    NO_ORDINALS,
    Backends,
    DocumentFilter,
    EncodedQuery,
    Leg,
    LegNames,
    LegResults,
    Ordinals,
    ReadCandidates,
    ScoredDocuments,
    Scores,
)
from lightretriever.service.cgroup import processors
from lightretriever.service.execution.executor import Executor, Outcome, call_here
from lightretriever.service.schemas import LegName
from lightretriever.service.settings import Settings

if TYPE_CHECKING:
    from lightretriever.artifacts.dense.later import LaterIndex
    from lightretriever.artifacts.live.overlay import Snapshot
    from lightretriever.artifacts.live.store import LiveStore

DENSE_LANE: Final = "dense"
"""The lane in which Faiss searches."""

HAND_OVER_BYTES: Final = 4 << 20
"""A search that reads fewer bytes of the dense index ends about as soon as another thread has taken it over
(docs/lab/results.md#speed)."""


def hands_over(search_bytes: int, running: int, free: int) -> bool:
    """Return whether Faiss searches in another thread, while Lucene searches in the request's own.

    That pays where the dense search takes longer than handing it over does (`search_bytes`: what it reads of the
    index), and where a processor is free for it: of `free` processors, each of the `running` searches needs one.
    """
    return search_bytes >= HAND_OVER_BYTES and running < free


class LuceneSparse:
    """Scores by the sum over the query's terms of weight times impact. Finds documents that score above 0."""

    name: Final[LegName] = "sparse"
    backend: Final = "lucene"

    def __init__(self, index: ImpactIndex, language: Language | None = None) -> None:
        """The caller closes the index, whose words are of a language."""
        self._index = index
        self._language: Language = language or "standard"

    def find(
        self, query: EncodedQuery, count: int, others: Ordinals, allowed: DocumentFilter | None, deadline: float
    ) -> FoundImpacts:
        """Find the best `count` documents, and read the impacts of these and of others (m,). TimeoutError at the
        `perf_counter` time `deadline`."""
        words = (query.terms, query.weights) if query.text is None else query.text
        return self._index.find(words, count, others, allowed, deadline - perf_counter(), self._language, query.named)

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents; 0.0 for a document that shares no term. ValueError for an unknown ordinal."""
        if ((ordinals < 0) | (ordinals >= self._index.count)).any():
            raise ValueError(
                f"ordinals must be 0 to {self._index.count - 1}; got {ordinals.min()} to {ordinals.max()}."
            )
        return self._index.scores(query.terms, query.weights, ordinals)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> Float32Array:
        """Return each term's share: its weight times its impact in the document."""
        shares: Float32Array = self._index.impacts(query.terms, ordinals).astype(np.float32)
        shares *= query.weights
        return shares


class FaissDense:
    """Scores by the cosine of the query's and the document's vectors. The index is freed with its last reference."""

    name: Final[LegName] = "dense"
    backend: Final = "faiss"

    def __init__(self, index: "DenseIndex | LaterIndex") -> None:
        self._index = index

    def search(self, query: EncodedQuery, count: int, allowed: DocumentFilter | None) -> ScoredDocuments:
        """Find the best `count` documents. Faiss can't be interrupted."""
        return ScoredDocuments(*self._index.search(_vector(query), count, None if allowed is None else allowed.bits))

    def nearest(self, query: EncodedQuery, count: int, allowed: DocumentFilter | None) -> Ordinals:
        """Find the documents (m,) that `search` scores and picks the best `count` from."""
        return self._index.nearest(_vector(query), count, None if allowed is None else allowed.bits)

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents."""
        return self._index.scores(_vector(query), ordinals)

    def scored(self, query: EncodedQuery, ordinals: Ordinals) -> tuple[Float32Array, Scores]:
        """Return the vectors of given documents (m, D), as the index has them, and their scores (m,)."""
        vectors = self._index.vectors(ordinals)
        return vectors, products(vectors, _vector(query))

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> Float32Array:
        """Return each token's share. ValueError without parts of the query's vector."""
        return query.dense_shares(self._index.vectors(ordinals))

    def vectors(self, ordinals: Ordinals) -> Float32Array:
        """Return the vectors of documents (m, D), as the index has them."""
        return self._index.vectors(ordinals)


def _vector(query: EncodedQuery) -> Float32Array:
    """Return the dense vector (D,) of a query. ValueError if it was encoded without one."""
    if query.dense is None:
        raise ValueError("the query was encoded without its dense vector")
    return query.dense


class LocalBackends(Backends):
    """On this machine, Lucene searches in the calling thread, and ends by itself when it is late. Faiss can't be
    interrupted: it searches meanwhile in the lane `dense`, or before, in the calling thread, as `hands_over` says."""

    name = LuceneSparse.backend
    documents: ImpactIndex
    live: "LiveStore | None"
    splits_text = True

    def __init__(
        self,
        index: ImpactIndex,
        dense: DenseIndex | None,
        language: Language | None,
        executor: Executor,
        store: "LiveStore | None" = None,
    ) -> None:
        """`close` closes the index of the bundle, whose words are of a language, if it has words, and the `store` of
        what is written beside it, which `now` searches too."""
        self.live, self._bundled, self._language, self._executor = store, index, language, executor
        self._processors = processors()
        self._running: list[None] = []  # one for each search that runs now, in any snapshot; append and pop are atomic
        self._snapshot: Snapshot | None = None
        self._use(index, dense)

    def _use(self, index: ImpactIndex, dense: "DenseIndex | LaterIndex | None") -> None:
        self.legs: dict[LegName, Leg] = {} if dense is None else {"dense": FaissDense(dense)}
        self.legs["sparse"] = LuceneSparse(index, self._language)
        self.documents = index
        self.spellings = None if self._language is None else Spelling(index, self._language)
        self._search_bytes = 0 if dense is None else dense.search_bytes

    def now(self) -> "LocalBackends":
        """Return the backends of the newest snapshot of the store, whatever is written meanwhile."""
        snapshot = None if self.live is None else self.live.snapshot
        if snapshot is None or snapshot is self._snapshot:
            return self
        newest = copy(self)
        newest._snapshot = snapshot
        newest._use(snapshot.index, snapshot.dense)
        return newest

    def close(self) -> None:
        """Close the journal and the indexes."""
        if self.live is not None:
            self.live.close()
        self._bundled.close()

    def search(
        self, query: EncodedQuery, legs: LegNames, count: int, allowed: DocumentFilter | None, deadline: float
    ) -> LegResults:
        """Search these legs, as `Backends.search`."""
        self._running.append(None)
        try:
            both, running = len(legs) == 2, len(self._running)
            handed_over = "dense" in legs and hands_over(self._search_bytes, running, self._processors)
            if both and not handed_over:
                return self._search_both(query, count, allowed, deadline)
            here, lanes = dict[LegName, Callable[[], Any]](), dict[LegName, Callable[[], Any]]()
            if "dense" in legs:
                dense = cast(FaissDense, self.legs["dense"])
                (lanes if handed_over else here)[DENSE_LANE] = partial(dense.search, query, count, allowed)
            if "sparse" in legs:
                sparse = cast(LuceneSparse, self.legs["sparse"])
                here["sparse"] = partial(sparse.find, query, count, NO_ORDINALS, allowed, deadline)
            outcomes: dict[LegName, Outcome[Any]] = self._executor.gather(lanes, deadline, here)
            if "sparse" in legs:
                return _results(outcomes, query)
            if not query.named:
                return LegResults(outcomes, query)
            no_terms: tuple[list[str], Float32Array] = [], np.empty(0, np.float32)
            # Of the documents, as the sparse leg may not answer.
            seek = partial(self.documents.find, no_terms, 1, NO_ORDINALS, allowed, named=query.named)
            matched = call_here(seek, deadline).value
            return LegResults(outcomes, query, named=NO_ORDINALS if matched is None else matched.named)
        finally:
            self._running.pop()

    def _search_both(
        self, query: EncodedQuery, count: int, allowed: DocumentFilter | None, deadline: float
    ) -> LegResults:
        """Search both legs in this thread, and read vectors and impacts of their candidates once."""
        dense, sparse = cast(FaissDense, self.legs["dense"]), cast(LuceneSparse, self.legs["sparse"])
        nearest = call_here(partial(dense.nearest, query, count, allowed), deadline)
        ordinals = NO_ORDINALS if nearest.value is None else nearest.value
        matched = call_here(partial(sparse.find, query, count, ordinals, allowed, deadline), deadline)
        results = _results({"dense": nearest, "sparse": matched}, query)
        if nearest.value is None:
            return results
        documents = np.sort(ordinals) if matched.value is None else matched.value.documents
        scored = call_here(partial(dense.scored, query, documents), inf)
        if scored.value is None:
            results.outcomes["dense"] = Outcome(None, scored.reason, scored.error)
            return results
        vectors, scores = scored.value
        hits = ScoredDocuments(*best_first(ordinals, scores[documents.searchsorted(ordinals)], count))
        results.outcomes["dense"] = Outcome(hits, started=nearest.started, ended=nearest.ended)
        if matched.value is not None:
            shares = matched.value.impacts.astype(np.float32) * matched.value.weights
            results.read = ReadCandidates(documents, shares, vectors, scores)
        return results

    def vectors(self, ordinals: Ordinals) -> Float32Array:
        """Return the vectors of documents (m, D), as the index has them."""
        return cast(FaissDense, self.legs["dense"]).vectors(ordinals)


def _results(outcomes: dict[LegName, Outcome[Any]], query: EncodedQuery) -> LegResults:
    """Return what the legs gave, the sparse one as hits, and the query with its terms."""
    sparse = outcomes["sparse"]
    if (matched := sparse.value) is None:
        return LegResults(outcomes, query)
    if query.text is not None:
        counts = matched.weights.astype(np.int64)
        query = replace(query, terms=[*matched.terms], counts=counts, weights=matched.weights, text=None)
    hits = replace(sparse, value=ScoredDocuments(matched.ordinals, matched.scores))
    return LegResults({**outcomes, "sparse": hits}, query, named=matched.named)


def open_local(bundle: Bundle, settings: Settings, executor: Executor) -> LocalBackends:
    """Open the indexes of a bundle, and the journal in the folder `live` of the settings, if it is named, and add the
    lane of the dense leg to the executor. BundleError, JavaError, and what `LiveStore` raises."""
    start_jvm(SEARCH_HEAP_MB if settings.live is None else DEFAULT_HEAP_MB)
    index, language, dense = bundle.sparse(), bundle.manifest.sparse.language, None
    try:
        if bundle.manifest.dense is not None:
            executor.add(DENSE_LANE, settings.threads(), patience_s=settings.deadline_ms / 1e3)
            dense = bundle.dense()
        if settings.live is None:
            return LocalBackends(index, dense, language, executor)
        from lightretriever.artifacts.live.store import LiveStore  # costs nothing where nothing is written

        store = LiveStore(settings.live, bundle.manifest, index, dense)
        return LocalBackends(index, dense, language, executor, store).now()
    except BaseException:
        index.close()
        raise
