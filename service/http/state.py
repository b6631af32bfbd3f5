"""The application's state, and how many requests may be worked on and wait: what comes on top is refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from lightretriever.service.collections.collections import Collections
from lightretriever.service.errors import OverloadedError
from lightretriever.service.execution.watching import WatchedFile
from lightretriever.service.http.api_keys import ApiKeys
from lightretriever.service.http.lanes import Recent
from lightretriever.service.settings import Settings

if TYPE_CHECKING:
    from lightretriever.service.http.tracing import Tracing

__all__ = ["Admission", "AppState"]

_REFUSALS: Final = 400
"""Refusals a second, so that clients that try again at once leave the processor to those that are admitted."""

_MAX_PAUSE_S: Final = 1.0


class Admission:
    """Counts the requests that are `admitted`, of a `limit`. Asked in the event loop alone, so it needs no lock."""

    def __init__(self, working: int, waiting: int) -> None:
        self.limit = working + waiting
        self.waiting = waiting
        self.admitted = 0
        self._refused = 0.0

    def pause(self, now: float) -> float:
        """Return the seconds, at most `_MAX_PAUSE_S`, after which to answer a refusal of the time `now` in seconds."""
        self._refused = min(max(self._refused + 1 / _REFUSALS, now), now + _MAX_PAUSE_S)
        return self._refused - now

    def check(self) -> None:
        """Raise OverloadedError if there is no room for another request."""
        if self.admitted >= self.limit:
            raise OverloadedError(
                f"{self.waiting} requests wait already, as many as may (max_waiting). Try again in a moment."
            )

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Count a request in the block. OverloadedError if there is no room."""
        self.check()
        self.admitted += 1
        try:
            yield
        finally:
            self.admitted -= 1


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
