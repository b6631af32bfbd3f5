"""The backends of a bundle on this machine, beside which documents are written: Faiss and Lucene search both."""

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.live.store import LiveStore
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.jvm import start_jvm
from lightretriever.artifacts.sparse.vocabulary import Language
from lightretriever.service.backends.local import LocalBackends, RunningSearches, open_dense, open_index
from lightretriever.service.errors import SettingsError
from lightretriever.service.execution.executor import Executor
from lightretriever.service.settings import Settings

__all__ = ["LiveBackends", "open_live"]


class LiveBackends(LocalBackends):
    """Implements `Backends` over one snapshot of a store, whatever is written meanwhile."""

    live: LiveStore

    def __init__(
        self,
        store: LiveStore,
        language: Language | None,
        executor: Executor,
        running: RunningSearches,
        bundled: ImpactIndex,
    ) -> None:
        """`close` closes the store and `bundled`, the index of the bundle, whose words are of a language."""
        self._snapshot = snapshot = store.snapshot
        super().__init__(snapshot.index, snapshot.dense, language, executor, running)
        self.live = store
        self._bundled = bundled

    def now(self) -> "LiveBackends":
        """Return the backends of the newest snapshot."""
        if self.live.snapshot is self._snapshot:
            return self
        return LiveBackends(self.live, self._language, self._executor, self._running, self._bundled)

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
        store = LiveStore(settings.live, bundle.manifest, index, open_dense(bundle, settings, executor))
        return LiveBackends(store, bundle.manifest.sparse.language, executor, RunningSearches(), index)
    except BaseException:
        index.close()
        raise
