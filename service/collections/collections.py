"""The bundles of a process by the names of their collections, each swapped alone while requests continue.

A background thread opens, verifies and warms the new version beside the old one, and swaps the two. A request keeps the
engine it began with; the old engine is closed after its last request. A version that can't be served is refused, and
the old one stays. It is tried again when the folder changes, and every five minutes.
"""

import asyncio
import gc
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Condition, Event, Thread
from time import monotonic
from typing import Final, Self

from lightretriever.artifacts.bundle.manifest import read_manifest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.bundle.verify import verify_bundle
from lightretriever.artifacts.errors import BundleError, LightRetrieverError
from lightretriever.service.errors import BundleRefusedError, NotFoundError, NotReadyError, SettingsError, shortened
from lightretriever.service.observability.metrics import Metrics
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.search.rules import RulesFile
from lightretriever.service.settings import Settings

DEFAULT: Final = "default"
"""The name of a collection that was given none."""

Folders = Mapping[str, Path]
"""Bundles by the names of their collections."""

_log = logging.getLogger(__name__)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_JOIN_S: Final = 5.0
_RETRY_S: Final = 300.0
_WARM_UP_SHARE: Final = 0.25  # of a processor; the rest is for the requests of the serving engine

_Signature = tuple[tuple[str, int, int, int, int], ...]
_Source = tuple[_Signature, str | None]
"""A folder's signature, and on a cluster the index that the alias stands for."""


class EngineHolder:
    """Holds the serving engine. With a folder, it opens, replaces and closes the folder's engines."""

    def __init__(self, engine: SearchEngine, folder: Path | None = None, name: str = DEFAULT) -> None:
        """Serve an engine, which the caller closes, as the collection `name`. Use `open` for a folder."""
        self.name = name
        """The collection's name."""
        self.settings = engine.settings
        self.metrics = engine.metrics
        self.engine = engine
        """The serving engine. Another one may replace and close it, except in the block of `lease`."""
        self.on_reload: Callable[[], None] = lambda: None
        """Called by `reload`, to notify other processes."""
        self._folder = folder
        self._leases = Counter[SearchEngine]()
        self._changed = Condition()  # guards the engine, its leases and the stop
        self._requests: SimpleQueue[Future[bool] | None] = SimpleQueue()
        self._stop = Event()
        self._thread: Thread | None = None
        self._looked: _Source | None = None
        self._handled: _Source | None = None
        self._retry_at = inf

    @classmethod
    @contextmanager
    def open(
        cls, folder: Path, settings: Settings, name: str = DEFAULT, metrics: Metrics | None = None
    ) -> Iterator[Self]:
        """Open the bundle in a folder, or in the target of a symbolic link, as the collection `name`. Errors as of
        `SearchEngine.open`. `metrics` are those of the process, None: the holder has its own. Every file is hashed
        before: otherwise damage that keeps the file's size would give wrong answers or crash Faiss."""
        rules = None if settings.rules is None else RulesFile(settings.rules, name)
        holder = cls(_open(_resolved(folder), settings, metrics or Metrics(), rules, verified=False), folder, name)
        try:
            holder.engine.publish(name)
            yield holder
        finally:
            holder.stop()
            holder.engine.close()

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
        if self._thread is None or self._stop.is_set():
            raise NotReadyError("The service starts or stops, or has no folder.")
        request = self.ask()  # before the others are notified: one of their requests to this process could come first
        self.on_reload()
        return await asyncio.wrap_future(request)

    def ask(self) -> "Future[bool]":
        """Request a reload from any thread."""
        request: Future[bool] = Future()
        self._requests.put(request)
        return request

    def stop(self) -> None:
        """Stop replacing engines. The serving engine stays open."""
        with self._changed:
            self._stop.set()
            self._changed.notify_all()
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self, folder: Path) -> None:
        while not self._stop.is_set():
            try:
                try:
                    request = self._requests.get(timeout=self.settings.watch_s or None)
                except Empty:
                    request = Future() if self._look(folder) else None
                if request is not None and request.set_running_or_notify_cancel():
                    self._reload(folder, request)
            except Exception:  # keep watching
                _log.exception("swapping bundles failed")
        while not self._requests.empty():
            if (left := self._requests.get()) is not None:
                left.cancel()

    def _look(self, folder: Path) -> bool:
        """Return whether the folder's bundle, or the index of the cluster's alias, is to be opened: it differs from the
        last one, or that was refused some time ago. It must be the same at two checks in a row, so that a copy in
        progress is left alone."""
        try:
            before, self._looked = self._looked, self._source(folder)
        except OSError as error:
            _log.warning("the bundle's folder can't be read now", extra={"collection": self.name, "reason": str(error)})
            return False
        return self._looked == before and (self._looked != self._handled or monotonic() > self._retry_at)

    def _source(self, folder: Path) -> _Source:
        return _signature(folder), self.engine.parts.backends.present_index()

    def _reload(self, folder: Path, request: "Future[bool]") -> None:
        try:
            old = self._replaced(folder)
        except Exception as error:
            request.set_exception(NotReadyError("The service stops.") if self._stop.is_set() else self._refused(error))
            return
        self._retry_at = inf
        if old is None:
            request.set_result(False)
            return
        manifest = self.engine.bundle.manifest
        fields = {"collection": self.name, "bundle": manifest.name, "version": manifest.digest}
        _log.info("bundle swapped", extra=fields)
        try:
            self.engine.publish(self.name)
            self.metrics.swaps.labels("swapped").inc()
        finally:  # the engines are swapped even if the metrics' disk is full
            request.set_result(True)
            self._close(old)
            del old  # so that it can be freed
            freeze_gc()

    def _close(self, engine: SearchEngine) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or not self._leases[engine])
            del self._leases[engine]
        engine.close()

    def _replaced(self, folder: Path) -> SearchEngine | None:
        """Verify the folder's bundle and serve a warm engine over it, and over the index that the cluster's alias
        stands for. Return the engine before; None if they are served already. NotReadyError when the service stops."""
        self._handled = _, index = self._source(folder)
        path = _resolved(folder)
        if read_manifest(path).digest == self.engine.bundle.manifest.digest and index == self.engine.parts.index:
            return None
        with ExitStack() as stack:
            engine = _open(path, self.settings, self.metrics, self.engine.parts.rules, verified=True)
            stack.callback(engine.close)
            engine.warm_up(self._stop, _WARM_UP_SHARE)
            engine.require_ready()
            with self._changed:
                if self._stop.is_set():
                    raise NotReadyError("The service stops.")
                self.engine, old = engine, self.engine
            stack.pop_all()
        return old

    def _refused(self, error: Exception) -> BundleRefusedError:
        """Count a refusal. The same bundle is tried again later, since the reason may be the machine's."""
        if not isinstance(error, LightRetrieverError | OSError):
            _log.exception("a bundle could not be opened")
        reason = str(error) if isinstance(error, LightRetrieverError) else f"{type(error).__name__}: {error}"
        served = self.engine.bundle.manifest.digest
        _log.error("bundle refused", extra={"collection": self.name, "reason": reason, "served": served})
        self.metrics.swaps.labels("refused").inc()
        self._retry_at = monotonic() + _RETRY_S
        return BundleRefusedError(f"{reason} Version {served} is served as before.")


class Collections:
    """The holders by name; the first is meant where a request names none."""

    def __init__(self, holders: Mapping[str, EngineHolder]) -> None:
        self._holders = dict(holders)

    @classmethod
    @contextmanager
    def open(cls, folders: Folders, settings: Settings) -> Iterator[Self]:
        """Open the bundle of each folder. Errors as in `EngineHolder.open`, and SettingsError for several collections
        on one index of a cluster or with one journal."""
        for single in ("opensearch_url", "live"):
            if len(folders) > 1 and getattr(settings, single) is not None:
                raise SettingsError(
                    f"There are {len(folders)} collections, but setting '{single}' names one index or journal.",
                    remedy="It belongs to one collection: serve each by a process of its own.",
                )
        metrics = Metrics()
        with ExitStack() as stack:
            opened = {
                name: stack.enter_context(EngineHolder.open(folder, settings, name, metrics))
                for name, folder in folders.items()
            }
            yield cls(opened)

    @property
    def first(self) -> EngineHolder:
        """The collection that is meant where a request names none."""
        return next(iter(self._holders.values()))

    def __iter__(self) -> Iterator[EngineHolder]:
        """Return every collection's holder."""
        return iter(self._holders.values())

    def of(self, name: str | None) -> EngineHolder:
        """Return a collection's holder, None: of the first. NotFoundError."""
        if name is None:
            return self.first
        try:
            return self._holders[name]
        except KeyError:
            names = shortened(", ".join(self._holders), 300)
            raise NotFoundError(f"There is no collection {name[:100]!r}; there are: {names}.") from None


def parse_folders(arguments: list[str]) -> dict[str, Path]:
    """Read the arguments of `serve`: one folder, or NAME=FOLDER for each collection. SettingsError."""
    if len(arguments) == 1 and ("=" not in arguments[0] or Path(arguments[0]).exists()):
        return {DEFAULT: Path(arguments[0])}
    folders: dict[str, Path] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        if not equals or not folder or not _NAME.fullmatch(name):
            raise SettingsError(
                f"{argument!r} does not name a collection and its bundle.",
                remedy="Write NAME=FOLDER; a name has 1 to 64 letters, digits, dots, dashes or underscores.",
            )
        if name in folders:
            raise SettingsError(f"The collection {name!r} is given twice.", remedy="Give each a name of its own.")
        folders[name] = Path(folder)
    return folders


def freeze_gc() -> None:
    """Exempt all present objects of a serving process from Python's cycle collector: a full collection stops every
    thread while it visits them, and most belong to modules, which stay. Collects previously frozen objects first: a
    replaced bundle may be among them."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _open(path: Path, settings: Settings, metrics: Metrics, rules: RulesFile | None, *, verified: bool) -> SearchEngine:
    """Open a bundle, after a full check if it is to be `verified`. BundleError if the folder changes meanwhile."""
    before, indexes = _signature(path), settings.backend == "local"
    if verified and (problems := verify_bundle(path, indexes=indexes)):
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        raise BundleError(f"{path}: {problems[0]}{more}")
    bundle = Bundle.open(path, indexes=indexes)
    if not verified:
        bundle.check_hashes()
    engine = SearchEngine.open(bundle, settings, metrics, rules)
    if _signature(path) != before:
        engine.close()
        raise BundleError(f"{path}: the folder was replaced while it was opened.", remedy="Try again.")
    return engine


def _resolved(folder: Path) -> Path:
    return Path(os.path.realpath(folder))  # unlike resolve(), it raises nothing for a link to itself


def _signature(folder: Path) -> _Signature:
    """Return every file's name, inode, size and times, which change with the folder's content and its permissions.
    Empty without a folder. OSError for what can't be looked into."""
    files = []

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # it has just gone
            raise error

    for root, _, names in os.walk(_resolved(folder), onerror=failed):
        for name in names:
            file = Path(root, name)
            with suppress(FileNotFoundError):
                status = file.stat()
                files.append((str(file), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return tuple(sorted(files))
