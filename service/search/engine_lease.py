"""How long an engine is needed: until another one has taken its place, and the last request that uses it has ended."""

from threading import Event, Lock
from types import TracebackType

from lightretriever.service.search.engine import SearchEngine

__all__ = ["Tenure"]


class Tenure:
    """An engine and the requests that use it: `with tenure as engine`. Engines change places in the event loop, so that
    the current tenure has not ended there; in other threads it may have since it was looked up, see `begin_if_open`."""

    __slots__ = ("_ended", "_lock", "_users", "drained", "engine")

    def __init__(self, engine: SearchEngine) -> None:
        self.engine = engine
        self.drained = Event()
        """Set when another engine has taken over and no request uses this one any more."""
        self._lock = Lock()
        self._users = 0
        self._ended = False

    def begin(self) -> SearchEngine:
        """Give the engine to a request."""
        with self._lock:
            self._users += 1
        return self.engine

    def begin_if_open(self) -> SearchEngine | None:
        """Give the engine to a request, unless another one has taken its place already."""
        with self._lock:
            if self._ended:
                return None
            self._users += 1
        return self.engine

    def leave(self) -> None:
        """Take it back."""
        with self._lock:
            self._users -= 1
            drained = self._ended and not self._users
        if drained:
            self.drained.set()

    def __enter__(self) -> SearchEngine:
        return self.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def end(self) -> None:
        """No further request will begin with this engine."""
        with self._lock:
            self._ended = True
            drained = not self._users
        if drained:
            self.drained.set()
