"""How long an engine is needed: until another one has taken its place, and the last request that uses it has ended."""

from threading import Event

from lightretriever.service.search.engine import SearchEngine

__all__ = ["EngineLease"]


class EngineLease:
    """An engine and the requests that use it: `with lease as engine`, in the event loop alone, where engines change
    places: there, the current lease has not ended."""

    def __init__(self, engine: SearchEngine) -> None:
        self.engine = engine
        self.drained = Event()
        """Set when another engine has taken over and no request uses this one any more. Any thread may wait for it."""
        self._users = 0
        self._ended = False

    def end(self) -> None:
        """No further request begins with this engine."""
        self._ended = True
        self._look()

    def __enter__(self) -> SearchEngine:
        self._users += 1
        return self.engine

    def __exit__(self, *error: object) -> None:
        self._users -= 1
        self._look()

    def _look(self) -> None:
        if self._ended and not self._users:
            self.drained.set()
