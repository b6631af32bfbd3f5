"""Swaps the served bundle while requests continue.

A background thread opens, verifies and warms the new version beside the old one, and swaps the two. A request keeps the
engine it began with; the old engine is closed after its last request. A version that can't be served is refused, and
the old one stays.
"""

import asyncio
import errno
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Condition, Event, Thread
from typing import Final, Self

from lightretriever.artifacts.bundle.manifest import read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError, ClusterError, LightRetrieverError
from lightretriever.service.errors import BundleRefusedError, DeadlineError, NotReadyError, SearchFailedError
from lightretriever.service.observability.metrics import Metrics
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.rules import RulesFile
from lightretriever.service.settings import Settings

__all__ = ["EngineHolder"]

_log = logging.getLogger(__name__)
_JOIN_S: Final = 5.0
_WARM_UP_SHARE: Final = 0.25  # of a processor; the rest is for the requests of the serving engine

_PASSING: Final = (ClusterError, SearchFailedError, DeadlineError, NotReadyError)  # errors of a cluster

_OF_THE_MACHINE: Final = (
    *map(os.strerror, (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR)),
    *("bad_alloc", "OutOfMemoryError", "can't start new thread"),  # as C++, Java and Python say it
)

_Signature = tuple[tuple[str, int, int, int, int], ...]
_Source = tuple[_Signature, str | None]
"""A folder's signature, and on a cluster the index that the alias stands for."""


class EngineHolder:
    """Holds the serving engine. With a folder, it opens, replaces and closes the folder's engines."""

    def __init__(self, engine: SearchEngine, folder: Path | None = None, name: str = "default") -> None:
        """Serve an engine, which the caller closes, as the collection `name`. Use `open` for a folder."""
        self.name = name
        """The collection's name."""
        self.settings = engine.settings
        self.metrics = engine.metrics
        self.engine = engine
        """The serving engine. Another one may replace and close it, except in the block of `lease`."""
        self.on_reload: Callable[[], None] = lambda: None
        """Called by `reload`, to notify other processes."""
        self.on_closed: Callable[[], None] = lambda: None
        """Called after a replaced engine is closed."""
        self._folder = folder
        self._leases = Counter[SearchEngine]()
        self._changed = Condition()  # guards the engine, its leases and the stop
        self._asked: SimpleQueue[Future[bool] | None] = SimpleQueue()
        self._stop = Event()
        self._thread: Thread | None = None
        self._looked: _Source | None = None
        self._handled: _Source | None = None

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: Settings | None = None,
        *,
        name: str = "default",
        metrics: Metrics | None = None,
    ) -> Self:
        """Open the bundle in a folder, or in the target of a symbolic link, as the collection `name`. BundleError,
        JavaError, SettingsError for rules that can't be used. `metrics` are those of the process, None: the holder has
        its own.

        Hashes every file before it opens an index: otherwise damage that keeps the file's size would give wrong answers
        or crash Faiss.
        """
        settings = settings or Settings()
        rules = None if settings.rules is None else RulesFile(settings.rules, name)
        engine = _open(_resolved(folder), settings, metrics or Metrics(), rules, verified=False)
        engine.publish(name)
        return cls(engine, folder, name)

    @contextmanager
    def lease(self) -> Iterator[SearchEngine]:
        """Use the serving engine, which stays open until the block ends."""
        with self._changed:
            engine = self.engine
            self._leases[engine] += 1
        try:
            yield engine
        finally:
            with self._changed:
                self._leases[engine] -= 1
                self._changed.notify_all()

    def start(self) -> None:
        """Start to watch the folder, if any."""
        if self._folder is not None:
            self._thread = Thread(target=self._run, args=(self._folder,), name="swap", daemon=True)
            self._thread.start()

    async def reload(self) -> bool:
        """Serve the folder's present bundle. False if it is served already; BundleRefusedError if it can't be."""
        if self._folder is None:
            raise BundleRefusedError("This process serves an engine that was opened elsewhere: there is no folder.")
        if self._thread is None or self._stop.is_set():
            raise NotReadyError("The service starts or stops.")
        asked = self.ask()  # before the others are notified: one of their requests to this process could come first
        self.on_reload()
        return await asyncio.wrap_future(asked)

    def ask(self) -> "Future[bool]":
        """Request a reload from any thread."""
        asked: Future[bool] = Future()
        self._asked.put(asked)
        return asked

    def stop(self) -> None:
        """Stop replacing engines. The serving engine stays open."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        self._asked.put(None)
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def close(self) -> None:
        """Stop, and close the engine if `open` opened it."""
        self.stop()
        if self._folder is not None:
            self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, folder: Path) -> None:
        """Check the folder every `watch_s` seconds, and on request."""
        while not self._stop.is_set():
            try:
                try:
                    asked = self._asked.get(timeout=self.settings.watch_s or None)
                except Empty:
                    asked = Future() if self._look(folder) else None
                if asked is not None and asked.set_running_or_notify_cancel():
                    self._replace(folder, asked)
            except Exception:  # keep watching
                _log.exception("swapping bundles failed")
        while not self._asked.empty():
            if (left := self._asked.get()) is not None:
                left.cancel()

    def _look(self, folder: Path) -> bool:
        """Return whether the folder's bundle, or the index of the cluster's alias, differs from the last one handled
        and is the same at two checks in a row, so that a copy in progress is left alone."""
        try:
            before, self._looked = self._looked, self._source(folder)
        except OSError as error:
            _log.warning("the bundle's folder can't be read now", extra={"collection": self.name, "reason": str(error)})
            return False
        return self._looked == before and self._looked != self._handled

    def _replace(self, folder: Path, asked: "Future[bool]") -> None:
        """Serve the folder's present bundle, complete `asked`, and close the old engine after its last request."""
        try:
            engine = self._prepared(folder)
        except Exception as error:
            stopping = self._stop.is_set()
            if _is_passing(error) or (self.engine.parts.backends.cluster is not None and isinstance(error, _PASSING)):
                self._handled = None  # so that it is tried again
            asked.set_exception(NotReadyError("The service stops.") if stopping else self._refused(error))
            return
        if engine is None:
            asked.set_result(False)
            return
        with self._changed:
            stopping, old = self._stop.is_set(), self.engine
            self.engine = old if stopping else engine
        if stopping:
            engine.close()
            asked.set_exception(NotReadyError("The service stops."))
            return
        manifest = engine.bundle.manifest
        about = {"collection": self.name, "bundle": manifest.name, "version": manifest.digest}
        _log.info("bundle swapped", extra=about)
        try:
            engine.publish(self.name)
            self.metrics.swaps.labels("swapped").inc()
        finally:  # the engines are swapped even if the metrics' disk is full
            asked.set_result(True)
            self._drain(old)
            old.close()
            del old  # so that it can be freed
            self.on_closed()

    def _drain(self, engine: SearchEngine) -> None:
        """Wait until no request uses a replaced engine, or the service stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or not self._leases[engine])
            del self._leases[engine]

    def _prepared(self, folder: Path) -> SearchEngine | None:
        """Verify the folder's bundle and give a warm engine over it, and over the index that the cluster's alias stands
        for; None if they are served already."""
        self._handled = _, index = self._source(folder)
        path = _resolved(folder)
        if read_manifest(path).digest == self.engine.bundle.manifest.digest and index == self.engine.parts.index:
            return None
        engine = _open(path, self.settings, self.metrics, self.engine.parts.rules, verified=True)
        try:
            engine.warm_up(self._stop, _WARM_UP_SHARE)
            engine.require_ready()
        except BaseException:
            engine.close()
            raise
        return engine

    def _source(self, folder: Path) -> _Source:
        group = self.engine.parts.backends.cluster
        return _signature(folder), None if group is None else group.present_index()

    def _refused(self, error: Exception) -> BundleRefusedError:
        if not isinstance(error, LightRetrieverError | OSError):
            _log.exception("a bundle could not be opened")
        reason = str(error) if isinstance(error, LightRetrieverError) else f"{type(error).__name__}: {error}"
        served = self.engine.bundle.manifest.digest
        _log.error("bundle refused", extra={"collection": self.name, "reason": reason, "served": served})
        self.metrics.swaps.labels("refused").inc()
        return BundleRefusedError(f"{reason} Version {served} is served as before.")


def _open(path: Path, settings: Settings, metrics: Metrics, rules: RulesFile | None, *, verified: bool) -> SearchEngine:
    """Open a bundle at a path without symbolic links, after a full check if it is to be `verified`. BundleError if the
    folder changes meanwhile."""
    before, indexes = _signature(path), settings.backend == "local"
    if verified and (problems := verify_bundle(path, indexes=indexes)):
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BundleError(f"{path}: {problems[0]}{more}")
    engine = SearchEngine.open(Bundle.open(path, indexes=indexes), settings, metrics, rules, hashed=verified)
    if _signature(path) != before:
        engine.close()
        raise BundleError(f"{path}: the folder was replaced while it was opened.", remedy="Try again.")
    return engine


def _resolved(folder: Path) -> Path:
    return Path(os.path.realpath(folder))  # unlike resolve(), it raises nothing for a link to itself


def _signature(folder: Path) -> _Signature:
    """Return every file's name, inode, size and times, which change with the folder's content and its permissions.
    Empty without a folder. OSError where the machine lacks something, such as files that may be open."""
    found = []

    def failed(error: OSError) -> None:
        if _is_passing(error):
            raise error

    for root, _, names in os.walk(_resolved(folder), onerror=failed):
        for name in names:
            file = Path(root, name)
            try:
                status = file.stat()
            except OSError as error:  # it has just gone
                failed(error)
                continue
            found.append((str(file), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(sorted(found))


def _is_passing(error: Exception) -> bool:
    """True if an error is of the machine and not of the bundle. Faiss and Java give its reason as text alone."""
    return isinstance(error, MemoryError) or any(reason in str(error) for reason in _OF_THE_MACHINE)
