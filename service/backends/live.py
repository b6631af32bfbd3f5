"""The backends of a bundle on this machine, beside which documents are written: Faiss and Lucene search both.

Each call is of the newest snapshot. A search has the documents that lived when it began, or that its filter chose;
ordinals stand for the same documents in every later snapshot.
"""

from collections.abc import Callable, Collection
from typing import Any, cast

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.live.store import LiveStore
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.artifacts.sparse.spelling import Spelling
from lightretriever.service.backends.base import DocumentFilter, EncodedQuery, LegResults
from lightretriever.service.backends.faiss import FaissDense
from lightretriever.service.backends.local import LocalBackends, add_lane, open_index, spelling_of
from lightretriever.service.backends.lucene import LuceneSparse
from lightretriever.service.errors import SettingsError
from lightretriever.service.execution.executor import Executor
from lightretriever.service.schemas import LegName
from lightretriever.service.settings import Settings

__all__ = ["LiveBackends", "open_live"]


class _Newest:
    """Stands for an index of the newest snapshot: has what that one has."""

    def __init__(self, index: Callable[[], object]) -> None:
        self._index = index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index(), name)


class LiveBackends(LocalBackends):
    """Implements `Backends`, and searches as `LocalBackends` does."""

    live: LiveStore

    def __init__(
        self, bundle: Bundle, index: ImpactIndex, store: LiveStore, settings: Settings, executor: Executor
    ) -> None:
        """`close` closes the store and `index`, which is the bundle's."""
        newest = cast(ImpactIndex, _Newest(lambda: store.snapshot.index))
        dense = None
        if bundle.manifest.dense is not None:
            dense = FaissDense(cast(DenseIndex, _Newest(lambda: store.snapshot.dense)))
        language, spellings = bundle.manifest.sparse.language, None
        if language is not None and spelling_of(bundle, index) is not None:
            spellings = cast(Spelling, _Newest(lambda: Spelling(store.snapshot.index, language)))
        add_lane(executor, settings, dense)
        super().__init__(LuceneSparse(newest, language), dense, newest, spellings, executor)
        self.live = store
        self._bundled = index

    def search(
        self, query: EncodedQuery, legs: Collection[LegName], count: int, among: DocumentFilter | None, until: float
    ) -> LegResults:
        """Search these legs until the `perf_counter` time `until`, among documents that live now. Every leg gets an
        outcome."""
        alive = self.live.snapshot.index.alive
        return super().search(query, legs, count, alive if among is None else among, until)

    def close(self) -> None:
        """Close the journal and the indexes."""
        self.live.close()
        self._bundled.close()


def open_live(bundle: Bundle, settings: Settings, executor: Executor, *, hashed: bool = True) -> LiveBackends:
    """Open the indexes of a bundle and the journal in the folder `live` of the settings, as `open_local` does.
    BundleError, JavaError, and what `LiveStore` raises."""
    if settings.live is None:
        raise SettingsError("Setting 'live' is missing.", remedy="Name the folder of the journal.")
    start_jvm()  # with a larger heap, for what is written
    index = open_index(bundle, hashed=hashed)
    try:
        dense = None if bundle.manifest.dense is None else bundle.dense()
        store = LiveStore(settings.live, bundle.manifest, index, dense)
        return LiveBackends(bundle, index, store, settings, executor)
    except BaseException:
        index.close()
        raise
