"""The backends of a bundle on this machine, beside which documents are written: Faiss and Lucene search both.

A search sees one snapshot from its filter to its legs. What comes after names documents by ordinals, which stand for
the same documents in every later snapshot.
"""

from collections.abc import Collection, Sequence
from math import inf

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.corpus.fields import Order
from lightretriever.artifacts.dense.later import LaterIndex
from lightretriever.artifacts.live.overlay import Among
from lightretriever.artifacts.live.store import LiveStore
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.artifacts.sparse.spelling import Spelling
from lightretriever.artifacts.sparse.vocabulary import Language
from lightretriever.service.backends.base import DocumentFilter, EncodedQuery, Ordinals, ScoredDocuments, Scores
from lightretriever.service.backends.faiss import FaissDense, query_vector
from lightretriever.service.backends.local import LocalBackends, add_lane, open_index, spelling_of
from lightretriever.service.backends.lucene import LuceneSparse
from lightretriever.service.errors import SettingsError
from lightretriever.service.execution.executor import Executor, Outcome
from lightretriever.service.schemas import LegName
from lightretriever.service.settings import Settings

__all__ = ["LiveBackends", "open_live"]


class LiveSparse(LuceneSparse):
    """The sparse leg over the present snapshot, or the one that a filter is of."""

    def __init__(self, store: LiveStore) -> None:
        self._store = store

    def search(
        self, query: EncodedQuery, count: int, among: DocumentFilter | None = None, until: float = inf
    ) -> ScoredDocuments:
        """Find the best `count` documents. TimeoutError at the `perf_counter` time `until`."""
        chosen = _chosen(self._store, among)
        return LuceneSparse(chosen.index).search(query, count, chosen.documents, until)

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents; 0.0 for a document that shares no term."""
        return LuceneSparse(self._store.snapshot.index).scores(query, ordinals)

    def shares(self, query: EncodedQuery, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Give each term's share: its weight times its impact in the document."""
        return LuceneSparse(self._store.snapshot.index).shares(query, ordinals)


class LiveDense(FaissDense):
    """The dense leg over the present snapshot, or the one that a filter is of."""

    def __init__(self, store: LiveStore, search_bytes: int) -> None:
        self._store = store
        self._search_bytes = search_bytes

    @property
    def search_bytes(self) -> int:
        """About how many bytes of the bundle's index a search reads."""
        return self._search_bytes

    def search(
        self, query: EncodedQuery, count: int, among: DocumentFilter | None = None, until: float = inf
    ) -> ScoredDocuments:
        """Find the best `count` documents. Faiss can't be interrupted, so `until` ends nothing."""
        chosen = _chosen(self._store, among)
        return ScoredDocuments(*_dense(chosen.dense).search(query_vector(query), count, chosen.first, chosen.later))

    def scores(self, query: EncodedQuery, ordinals: Ordinals) -> Scores:
        """Score given documents."""
        return _dense(self._store.snapshot.dense).scores(query_vector(query), ordinals)

    def stored(self, ordinals: Ordinals) -> npt.NDArray[np.float32]:
        """Give the vectors of documents (m, D) as the indexes hold them."""
        return _dense(self._store.snapshot.dense).vectors(ordinals)


class LiveStoredDocuments:
    """The documents of the present snapshot: a `DocumentStore`."""

    def __init__(self, store: LiveStore) -> None:
        self._store = store

    @property
    def count(self) -> int:
        """Number of documents that have an ordinal, living or dead."""
        return self._store.snapshot.index.count

    def spread(self, count: int) -> Ordinals:
        """Give the ordinals of up to `count` living documents from all over the store, ascending."""
        snapshot = self._store.snapshot
        if snapshot.alive is None:
            return snapshot.index.spread(count)
        living = np.flatnonzero(np.unpackbits(snapshot.alive, bitorder="little"))
        return living[np.linspace(0, living.size - 1, min(count, living.size)).astype(np.int64)]

    def documents(self, ordinals: Ordinals) -> list[bytes]:
        """Give the JSON of documents (m,). ValueError for an unknown ordinal."""
        return self._store.snapshot.index.documents(ordinals)

    def ordinal(self, document_id: str) -> int | None:
        """Give the ordinal of the document with this id, None if there is none."""
        return self._store.ordinal(document_id)

    def terms(self, ordinal: int) -> tuple[list[str], npt.NDArray[np.int32]]:
        """Give all terms (n,) of a document, and their impacts (n,) int32."""
        return self._store.snapshot.index.terms(ordinal)

    def counts(self, field: str, ordinals: Ordinals) -> list[tuple[str, int]]:
        """Count the values of a keyword field in documents (m,), the most frequent first, ties by value."""
        return self._store.snapshot.index.counts(field, ordinals)

    def counts_among(self, field: str, among: DocumentFilter | None) -> list[tuple[str, int]]:
        """The same over the living documents `among`; None: over all that live."""
        chosen = _chosen(self._store, among)
        return chosen.index.counts_among(field, chosen.documents)

    def totals(self, chosen: Sequence[DocumentFilter | None]) -> list[int]:
        """Give the number of living documents in each set; None: all that live."""
        sets = [_chosen(self._store, among) for among in chosen]
        return [total for one in sets for total in one.index.totals([one.documents])]

    def listed(
        self, among: DocumentFilter | None, order: Order | None, offset: int, count: int, seconds: float = inf
    ) -> Ordinals:
        """Give the living documents (m,) from the one at `offset` on, up to `count`, in an order, or by ordinal."""
        chosen = _chosen(self._store, among)
        return chosen.index.listed(chosen.documents, order, offset, count, seconds)

    def where(self, condition: Sequence[str]) -> DocumentFilter:
        """Give the condition itself, because another snapshot has other documents; the present ones are found and
        remembered."""
        self._store.snapshot.where(tuple(condition))
        return tuple(condition)

    def close(self) -> None:
        """Do nothing: `LiveBackends` closes the indexes."""


class LiveSpellings:
    """The spellings of the present snapshot."""

    def __init__(self, store: LiveStore, language: Language) -> None:
        self._store, self._language = store, language

    def corrections(self, words: Sequence[str]) -> list[str]:
        """For each word, give the corpus's word most like it; "" if it has the word, or none is near."""
        return Spelling(self._store.snapshot.index, self._language).corrections(words)

    def completions(self, beginning: str, most: int) -> list[tuple[str, int]]:
        """Give the most frequent `most` words with this beginning, each with the number of documents that have it."""
        return Spelling(self._store.snapshot.index, self._language).completions(beginning, most)


class LiveBackends(LocalBackends):
    """Implements `Backends`, and searches as `LocalBackends` does."""

    live: LiveStore

    def __init__(
        self,
        index: ImpactIndex,
        dense: LiveDense | None,
        spellings: LiveSpellings | None,
        store: LiveStore,
        executor: Executor,
    ) -> None:
        """`close` closes the store, and the bundle's index."""
        super().__init__(LiveSparse(store), dense, LiveStoredDocuments(store), spellings, executor)
        self.live = store
        self._index = index

    def search(
        self, query: EncodedQuery, legs: Collection[LegName], count: int, among: DocumentFilter | None, until: float
    ) -> dict[LegName, Outcome[ScoredDocuments]]:
        """Search these legs in one snapshot until the `perf_counter` time `until`. Every leg gets an outcome."""
        return super().search(query, legs, count, _chosen(self.live, among), until)

    def close(self) -> None:
        """Close the journal and the indexes."""
        self.live.close()
        self._index.close()


def open_live(bundle: Bundle, settings: Settings, executor: Executor, *, hashed: bool = True) -> LiveBackends:
    """Open the indexes of a bundle and the journal in the folder `live` of the settings, as `open_local` does.
    BundleError, JavaError, and what `LiveStore` raises."""
    if settings.live is None:
        raise SettingsError("Setting 'live' is missing.", remedy="Name the folder of the journal.")
    start_jvm()  # with a larger heap, for what is written
    index = open_index(bundle, hashed=hashed)
    try:
        vectors = None if bundle.manifest.dense is None else bundle.dense()
        store = LiveStore(settings.live, bundle.manifest, index, vectors)
    except BaseException:
        index.close()
        raise
    dense = None if vectors is None else LiveDense(store, vectors.search_bytes)
    add_lane(executor, settings, dense)
    language = bundle.manifest.sparse.language
    spelt = language is not None and spelling_of(bundle, index) is not None
    return LiveBackends(index, dense, LiveSpellings(store, language) if spelt and language else None, store, executor)


def _chosen(store: LiveStore, among: DocumentFilter | None) -> Among:
    """Give the documents of a filter in the snapshot that it is of, or else in the present one."""
    if isinstance(among, Among):
        return among
    return store.snapshot.all if among is None else store.snapshot.where(among)


def _dense(found: LaterIndex | None) -> LaterIndex:
    if found is None:
        raise ValueError("the bundle has no dense leg")
    return found
