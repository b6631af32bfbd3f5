"""The application's state."""

from typing import TYPE_CHECKING, Any

from lightretriever.service.collections.collections import Collections
from lightretriever.service.collections.swap import EngineHolder
from lightretriever.service.execution.watching import WatchedFile
from lightretriever.service.http.admission import Admission
from lightretriever.service.http.api_keys import ApiKeys
from lightretriever.service.http.lanes import Recent
from lightretriever.service.settings import Settings

if TYPE_CHECKING:
    from lightretriever.service.http.tracing import Tracing

__all__ = ["AppState"]


class AppState:
    """Created with the application; `collections` are set at start-up."""

    collections: Collections

    def __init__(self, settings: Settings, tracing: "Tracing | None") -> None:
        """SettingsError if the file of API keys can't be used."""
        self.settings = settings
        self.keys = None if settings.api_keys_file is None else ApiKeys(settings.api_keys_file)
        self.admission = Admission(settings.threads(), settings.max_waiting)
        self.tracing = tracing
        self.watched: list[WatchedFile[Any]] = [] if self.keys is None else [self.keys]
        """Files that are read again when they change, beside the rules of collections."""

        self._recent: dict[str, Recent] = {}

    def recent(self, collection: str) -> Recent:
        """Return how long the light searches of a collection took lately."""
        return self._recent.setdefault(collection, Recent())

    @property
    def holder(self) -> EngineHolder:
        """The collection that is meant where a request names none."""
        return self.collections.first
