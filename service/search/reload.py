"""The bundle that is served, and how another one takes its place while requests go on.

The new version is opened, verified and warmed beside the old one, in a thread of its own. Then the two change places in
the event loop, between two requests. A request keeps the engine it began with; the old one is closed when the last of
them ended. A version that can't be served is refused, and the old one goes on.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self

from lightretriever.artifacts.bundle.manifest import read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError, LightRetrieverError
from lightretriever.service.errors import BundleRefusedError, NotReadyError
from lightretriever.service.observability.metrics import Metrics
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings

__all__ = ["EngineHolder", "EngineLease"]

_log = logging.getLogger(__name__)
_TURN_S: Final = 10.0
_JOIN_S: Final = 5.0
_WARM_UP_SHARE: Final = 0.25  # of a processor: the others are for the requests of the engine that serves meanwhile

_Identity = tuple[int, int]
_Signature = tuple[tuple[str, int, int, int], ...]


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


class EngineHolder:
    """The engine that answers now. With a folder, its engines are opened, replaced and closed here."""

    def __init__(self, engine: SearchEngine, folder: Path | None = None) -> None:
        """Serve an engine, which stays its owner's. Use `open` for a folder."""
        self.settings = engine.settings
        self.metrics = engine.metrics
        self.current = EngineLease(engine)
        """Read it once per request."""
        self.on_reload: Callable[[], None] = lambda: None
        """Called when a reload was asked for, to tell other processes."""
        self.on_closed: Callable[[], None] = lambda: None
        """Called when an engine that was replaced is closed."""
        self._folder = folder
        self._asked: SimpleQueue[Future[bool] | None] = SimpleQueue()
        self._stop = Event()
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looked: _Signature | None = None
        self._handled: _Signature | None = None

    @classmethod
    def open(cls, folder: Path, settings: Settings | None = None) -> Self:
        """Open the bundle in a folder, or where it leads, if it is a symbolic link. BundleError, JavaError.

        Every file is read and hashed before an index is opened: damage that changes no file's size would else be
        served, as other answers, or end the process within Faiss.
        """
        engine = _open(folder.resolve(), settings or Settings(), Metrics(), hashed=False)
        engine.publish()
        return cls(engine, folder)

    def start(self) -> None:
        """Begin to watch the folder, if there is one. Call it in the event loop that serves."""
        if self._folder is None:
            return
        self._loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._run, name="swap", daemon=True)
        self._thread.start()

    async def reload(self) -> bool:
        """Serve what the folder has now. False if that is served already; BundleRefusedError if it can't be served."""
        if self._folder is None:
            raise BundleRefusedError("This process serves an engine that was opened elsewhere: there is no folder.")
        if self._thread is None or self._stop.is_set():
            raise NotReadyError("The service starts or stops.")
        self.on_reload()
        return await asyncio.wrap_future(self.ask())

    def ask(self) -> "Future[bool]":
        """Ask from any thread for what `reload` does."""
        asked: Future[bool] = Future()
        self._asked.put(asked)
        return asked

    def stop(self) -> None:
        """Replace nothing any more. What is served stays open."""
        self._stop.set()
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def close(self) -> None:
        """Stop, and close the engine if it came from the folder."""
        self.stop()
        if self._folder is not None:
            self.current.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        """Look at the folder every `watch_s` seconds, and whenever someone asks."""
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception:  # whatever it was, the next version must be found
                _log.exception("swapping bundles failed")
        while not self._asked.empty():
            if (left := self._asked.get()) is not None:
                left.cancel()

    def _turn(self) -> None:
        try:
            asked = self._asked.get(timeout=self.settings.watch_s or None)
        except Empty:
            self._look()
        else:
            if asked is not None and asked.set_running_or_notify_cancel():
                self._replace(asked)

    def _look(self) -> None:
        """Serve what the folder has, if it differs from what was handled last and is the same at two looks in a row:
        what is being copied, or moved away for a moment, is let alone."""
        if self._folder is None:
            return
        before, self._looked = self._looked, _signature(self._folder)
        if self._looked == before and self._looked != self._handled:
            self._replace(Future())

    def _replace(self, asked: "Future[bool]") -> None:
        """Serve what the folder has now, tell the asker, and close what was served when nobody uses it any more."""
        try:
            engine = self._prepared()
        except Exception as error:
            stopping = self._stop.is_set()
            asked.set_exception(NotReadyError("The service stops.") if stopping else self._refused(error))
            return
        if engine is None:
            asked.set_result(False)
            return
        old = self.current
        if not self._exchanged(engine):
            engine.close()
            asked.set_exception(NotReadyError("The service stops."))
            return
        asked.set_result(True)
        # Every request ends with its deadline.
        while not old.drained.wait(_TURN_S):
            if self._stop.is_set():
                break
        old.engine.close()
        del old  # so that it can be freed
        self.on_closed()

    def _prepared(self) -> SearchEngine | None:
        """A warm engine over what the folder has, every file of it verified; None if that is served already."""
        if self._folder is None:
            raise BundleRefusedError("There is no folder.")
        self._handled = _signature(self._folder)
        path = self._folder.resolve()
        if read_manifest(path).digest == self.current.engine.bundle.manifest.digest:
            return None
        identity = _identity(path)
        problems = verify_bundle(path)
        if problems:
            more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
            raise BundleError(f"{path}: {problems[0]}{more}")
        engine = _open(path, self.settings, self.metrics, hashed=True)
        try:
            _require_same(path, identity)
            engine.warm_up(self._stop, _WARM_UP_SHARE)
            engine.require_ready()
        except BaseException:
            engine.close()
            raise
        return engine

    def _refused(self, error: Exception) -> BundleRefusedError:
        if not isinstance(error, LightRetrieverError | OSError):
            _log.exception("a bundle could not be opened")
        reason = str(error) if isinstance(error, LightRetrieverError) else f"{type(error).__name__}: {error}"
        served = self.current.engine.bundle.manifest.digest
        _log.error("bundle refused", extra={"reason": reason, "served": served})
        self.metrics.swaps.labels("refused").inc()
        return BundleRefusedError(f"{reason} Version {served} is served as before.")

    def _exchanged(self, engine: SearchEngine) -> bool:
        """Let the event loop put the engine in the place of the current one; false if the loop has ended."""
        done = Event()

        def exchange() -> None:
            old, self.current = self.current, EngineLease(engine)
            old.end()
            try:
                engine.publish()
                self.metrics.swaps.labels("swapped").inc()
            finally:  # were the metrics' disk full, the engines have changed places all the same
                done.set()

        if self._loop is None:
            return False
        try:
            self._loop.call_soon_threadsafe(exchange)
        except RuntimeError:  # it is closed
            return False
        while not done.wait(_TURN_S):
            if self._stop.is_set():
                return done.is_set()
        manifest = engine.bundle.manifest
        _log.info("bundle swapped", extra={"bundle": manifest.name, "version": manifest.digest})
        return True


def _open(path: Path, settings: Settings, metrics: Metrics, *, hashed: bool) -> SearchEngine:
    """Open a bundle whose path has no symbolic link, and whose hashes were compared or still are to be; BundleError if
    another one took its place meanwhile."""
    bundle = Bundle.open(path)
    identity = _identity(path)
    engine = SearchEngine.open(bundle, settings, metrics, hashed=hashed)
    try:
        _require_same(path, identity)
    except BaseException:
        engine.close()
        raise
    return engine


def _identity(path: Path) -> _Identity:
    status = path.stat()
    return status.st_dev, status.st_ino


def _require_same(path: Path, identity: _Identity) -> None:
    if _identity(path) != identity:
        raise BundleError(f"{path}: the folder was replaced while it was opened.", remedy="Try again.")


def _signature(folder: Path) -> _Signature:
    """What tells one content of a folder from another without reading it: every file's name, inode, size and time.
    Empty where there is no folder."""
    found = []
    for root, _, names in os.walk(folder.resolve()):
        for name in names:
            file = Path(root, name)
            try:
                status = file.stat()
            except OSError:  # it has just gone
                continue
            found.append((str(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))
