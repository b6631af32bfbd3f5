"""The backends of a bundle on this machine: Faiss and Lucene at the same time."""

from copy import copy
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dense.index import DenseIndex, best_first, products
from lightretriever.artifacts.dtypes import Float32Array, UInt8Array
from lightretriever.artifacts.sparse.index import FoundImpacts, ImpactIndex, Spelling
from lightretriever.artifacts.sparse.jvm import DEFAULT_HEAP_MB, SEARCH_HEAP_MB, start_jvm
from lightretriever.artifacts.sparse.vocabulary import Language
from lightretriever.service.backends.base import (
    NO_ORDINALS,
    Backends,
    DocumentFilter,
    EncodedQuery,
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


class LocalBackends(Backends):
    """On this machine, Lucene searches in the calling thread, and ends by itself when it is late. Faiss can't be
    interrupted: it searches meanwhile in the lane `dense`, or before, in the calling thread, as `hands_over` says."""

    name = "lucene"
    documents: ImpactIndex
    sparse: ImpactIndex
    """Searches the sparse leg."""
    dense: "DenseIndex | LaterIndex"
    """Searches the dense leg, if there is one."""
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
        self.legs = {"sparse": "lucene"} if dense is None else {"dense": "faiss", "sparse": "lucene"}
        self.live, self._bundled, self._language, self._executor = store, index, language, executor
        self._processors = processors()
        self._running: list[None] = []  # one for each search that runs now, in any snapshot; append and pop are atomic
        self._snapshot: Snapshot | None = None
        self._use(index, dense)

    def _use(self, index: ImpactIndex, dense: "DenseIndex | LaterIndex | None") -> None:
        self.documents = self.sparse = index
        if dense is not None:
            self.dense = dense
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
            handed_over = "dense" in legs and hands_over(self._search_bytes, len(self._running), self._processors)
            if len(legs) == 2 and not handed_over:
                return self._search_both(query, count, allowed, deadline)
            dense = partial(self._search_dense, query, count, allowed)
            handed = self._executor.begin(DENSE_LANE, dense, deadline) if handed_over else None
            outcomes = dict[LegName, Outcome[Any]]()
            if "sparse" in legs:
                find = partial(self._find, query, count, NO_ORDINALS, allowed, deadline)
                outcomes["sparse"] = call_here(find, deadline)
            if "dense" in legs:
                outcomes["dense"] = call_here(dense, deadline) if handed is None else handed()
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
        nearest = call_here(partial(self.dense.nearest, query.vector, count, _bits(allowed)), deadline)
        ordinals = NO_ORDINALS if nearest.value is None else nearest.value
        matched = call_here(partial(self._find, query, count, ordinals, allowed, deadline), deadline)
        results = _results({"dense": nearest, "sparse": matched}, query)
        if nearest.value is None:
            return results
        documents = np.sort(ordinals) if matched.value is None else matched.value.documents
        read = call_here(partial(self.dense.vectors, documents), inf)
        if read.value is None:
            results.outcomes["dense"] = Outcome(None, read.reason, read.error)
            return results
        scores = products(read.value, query.vector)
        hits = ScoredDocuments(*best_first(ordinals, scores[documents.searchsorted(ordinals)], count))
        results.outcomes["dense"] = Outcome(hits, started=nearest.started, ended=nearest.ended)
        if matched.value is not None:
            shares = matched.value.impacts.astype(np.float32) * matched.value.weights
            results.read = ReadCandidates(documents, shares, read.value, scores)
        return results

    def _search_dense(self, query: EncodedQuery, count: int, allowed: DocumentFilter | None) -> ScoredDocuments:
        return ScoredDocuments(*self.dense.search(query.vector, count, _bits(allowed)))

    def _find(
        self, query: EncodedQuery, count: int, others: Ordinals, allowed: DocumentFilter | None, deadline: float
    ) -> FoundImpacts:
        words = (query.terms, query.weights) if query.text is None else query.text
        language, seconds = self._language or "standard", deadline - perf_counter()
        return self.sparse.find(words, count, others, allowed, seconds, language, query.named)

    def scores(self, vector: Float32Array, ordinals: Ordinals) -> Scores:
        """Return the dense scores of given documents."""
        return self.dense.scores(vector, ordinals)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> Float32Array:
        """Return each term's share of the sparse scores of given documents."""
        if ((ordinals < 0) | (ordinals >= self.sparse.count)).any():
            raise ValueError(f"ordinals are 0 to {self.sparse.count - 1}, not {ordinals.min()} to {ordinals.max()}")
        shares: Float32Array = self.sparse.impacts(query.terms, ordinals).astype(np.float32)
        shares *= query.weights
        return shares

    def vectors(self, ordinals: Ordinals) -> Float32Array:
        """Return the vectors of documents (m, D), as the index has them."""
        return self.dense.vectors(ordinals)


def _bits(allowed: DocumentFilter | None) -> UInt8Array | None:
    return None if allowed is None else allowed.bits


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
