"""Swaps the served bundle while requests continue.

A background thread opens, verifies and warms the new version beside the old one. The event loop then swaps the two
between two requests. A request keeps the engine it began with; the old engine is closed after its last request. A
version that can't be served is refused, and the old one stays.
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
_WARM_UP_SHARE: Final = 0.25  # of a processor; the rest is for the requests of the serving engine

_Identity = tuple[int, int]
_Signature = tuple[tuple[str, int, int, int], ...]


class EngineLease:
    """Counts the requests that use an engine: `with lease as engine`. Use it in the event loop alone, where engines are
    swapped, so that the current lease has not ended."""

    def __init__(self, engine: SearchEngine) -> None:
        self.engine = engine
        self.drained = Event()
        """Set when the engine has been replaced and no request uses it. Any thread may wait for it."""
        self._users = 0
        self._ended = False

    def end(self) -> None:
        """Mark the engine as replaced: no further request begins with it."""
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
    """Holds the serving engine. With a folder, it opens, replaces and closes the folder's engines."""

    def __init__(self, engine: SearchEngine, folder: Path | None = None) -> None:
        """Serve an engine, which the caller closes. Use `open` for a folder."""
        self.settings = engine.settings
        self.metrics = engine.metrics
        self.current = EngineLease(engine)
        """Read it once per request."""
        self.on_reload: Callable[[], None] = lambda: None
        """Called by `reload`, to notify other processes."""
        self.on_closed: Callable[[], None] = lambda: None
        """Called after a replaced engine is closed."""
        self._folder = folder
        self._asked: SimpleQueue[Future[bool] | None] = SimpleQueue()
        self._stop = Event()
        self._thread: Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looked: _Signature | None = None
        self._handled: _Signature | None = None

    @classmethod
    def open(cls, folder: Path, settings: Settings | None = None) -> Self:
        """Open the bundle in a folder, or in the target of a symbolic link. BundleError, JavaError.

        Hashes every file before it opens an index: otherwise damage that keeps the file's size would give wrong answers
        or crash Faiss.
        """
        engine = _open(folder.resolve(), settings or Settings(), Metrics(), hashed=False)
        engine.publish()
        return cls(engine, folder)

    def start(self) -> None:
        """Start to watch the folder, if any. Call it in the serving event loop."""
        if self._folder is None:
            return
        self._loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._run, name="swap", daemon=True)
        self._thread.start()

    async def reload(self) -> bool:
        """Serve the folder's present bundle. False if it is served already; BundleRefusedError if it can't be."""
        if self._folder is None:
            raise BundleRefusedError("This process serves an engine that was opened elsewhere: there is no folder.")
        if self._thread is None or self._stop.is_set():
            raise NotReadyError("The service starts or stops.")
        self.on_reload()
        return await asyncio.wrap_future(self.ask())

    def ask(self) -> "Future[bool]":
        """Request a reload from any thread."""
        asked: Future[bool] = Future()
        self._asked.put(asked)
        return asked

    def stop(self) -> None:
        """Stop replacing engines. The serving engine stays open."""
        self._stop.set()
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def close(self) -> None:
        """Stop, and close the engine if `open` opened it."""
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
        """Check the folder every `watch_s` seconds, and on request."""
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception:  # keep watching
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
        """Serve the folder's bundle if it differs from the last one handled and is the same at two checks in a row, so
        that a copy in progress is left alone."""
        if self._folder is None:
            return
        before, self._looked = self._looked, _signature(self._folder)
        if self._looked == before and self._looked != self._handled:
            self._replace(Future())

    def _replace(self, asked: "Future[bool]") -> None:
        """Serve the folder's present bundle, complete `asked`, and close the old engine after its last request."""
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
        while not old.drained.wait(_TURN_S):
            if self._stop.is_set():
                break
        old.engine.close()
        del old  # so that it can be freed
        self.on_closed()

    def _prepared(self) -> SearchEngine | None:
        """Verify the folder's bundle and give a warm engine over it; None if it is served already."""
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
        """Swap the engine with the current one in the event loop; False if the loop has ended."""
        done = Event()

        def exchange() -> None:
            old, self.current = self.current, EngineLease(engine)
            old.end()
            try:
                engine.publish()
                self.metrics.swaps.labels("swapped").inc()
            finally:  # the engines are swapped even if the metrics' disk is full
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
    """Open a bundle at a path without symbolic links. BundleError if the folder is replaced meanwhile."""
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
    """Give every file's name, inode, size and time, which change with the folder's content. Empty without a folder."""
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
