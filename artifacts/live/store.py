"""Live documents on one machine: changes go to the journal, and from there into the overlay of every process."""

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from threading import TIMEOUT_MAX, Event, Lock, Thread
from time import perf_counter
from typing import Final

import numpy as np

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.errors import ConflictError, DiskError, DocumentError, JavaError, JournalError
from lightretriever.artifacts.live.documents import (
    Change,
    LiveDocuments,
    Result,
    StoredDocument,
    Written,
    check_version,
    unencoded,
)
from lightretriever.artifacts.live.folder import Follower
from lightretriever.artifacts.live.journal import Journal, Record
from lightretriever.artifacts.live.overlay import Overlay, Snapshot
from lightretriever.artifacts.sparse.index import ImpactIndex

_log = logging.getLogger(__name__)
_FOLLOW_S: Final = 0.1  # between two looks at what other processes wrote
_AGAIN_S: Final = 1.0  # between two attempts to make an overlay on a full disk
_AT_ONCE: Final = 4096  # changes that are replayed together
_JOIN_S: Final = 5.0
_MAX_WRITTEN: Final = 200_000  # documents written later, every version of them
_SHARE: Final = 10  # of the bundle's documents, one in so many is the size from which on a compaction pays
_FEW, _MANY = 1_000, 100_000  # bounds of that size
_MOVE: Final = "Move the folder away: the bundle is then served without the changes in it."
_FREE: Final = "Look at free space and permissions; writing goes on when there is room."
_COMPACT: Final = "Make a bundle of all: `lightretriever compact BUNDLE --live DIR --output NEW`."

_Call = tuple[Sequence[Change], Future[list[Result]]]
"""The changes of a call of `write`, and what became of them."""


class LiveStore(LiveDocuments):
    """The documents of a bundle and of a journal, to be written and searched. Thread-safe. Calls that write at the same
    time share one write to the disk. Any number of processes may have the same folder open; each follows the
    journal."""

    most_impact = MAX_IMPACT

    def __init__(self, folder: Path, manifest: Manifest, index: ImpactIndex, dense: DenseIndex | None) -> None:
        """Replay the journal in a folder, or begin one. `index` and `dense` are the bundle's, and stay open.
        JournalError for a damaged journal, or one that does not fit the bundle; DiskError."""
        self.top_k = manifest.sparse.top_k
        """Most terms of a document, the strongest; None: all."""
        self._behind: str | None = None  # why the overlay lacks changes; `_follow` makes another one
        self._digest = manifest.digest[:12]
        self._bundled = index.count
        self._large = min(_MANY, max(_FEW, index.count // _SHARE))
        self._lock = Lock()  # of the journal and the overlay
        self._waiting = deque[_Call]()
        self._stop = Event()
        with ExitStack() as opened:
            self._journal = opened.enter_context(Journal(folder, manifest))
            self._position = self._journal.sequence  # of the last change in the bundle
            self._to_drop: int | None = self._position
            self._follower = Follower(folder)
            opened.callback(self._follower.close)
            self._opened = partial(Overlay, manifest, index, dense)
            try:
                self._overlay = self._replayed()
            except (JavaError, ValueError) as error:
                self._journal.check_room(probe=True)
                raise JournalError(f"{folder}: the changes can't be searched: {error}", remedy=_MOVE) from error
            opened.callback(self._overlay.close)
            with self._journal.writing(inf) as records:
                self._apply(records)
                self._follower.check(self._journal.sequence)
            self._follower.tell(self._journal.sequence)
            opened.pop_all()
        self._thread = Thread(target=self._follow, name="journal", daemon=True)
        self._thread.start()

    @property
    def snapshot(self) -> Snapshot:
        """What searches see now."""
        return self._overlay.snapshot

    @property
    def written(self) -> int:
        """Number of documents written beside the bundle that take memory here, every version of each."""
        return self.snapshot.index.count - self._bundled

    @property
    def warning(self) -> str | None:
        """What to do if changes can't be searched yet, or if many documents are written: a tenth of the bundle's, or
        100,000; otherwise None."""
        if self._behind is not None:
            return f"{self._behind} {_FREE}"
        if self.written < self._large:
            return None
        return f"{self.written:,} documents are written beside the bundle, of at most {_MAX_WRITTEN:,}. {_COMPACT}"

    def version(self, sequence: int) -> str:
        """Return the version of the document that a change made; 0: that of a document of the bundle."""
        return f"{sequence}.{self._journal.origin(sequence) if sequence else self._digest}"

    def get(self, document_id: str, deadline: float = inf) -> StoredDocument | None:
        """Read a document as it is now, whatever process wrote it; None if there is none with this id. TimeoutError at
        the `perf_counter` time `deadline`, JournalError for a damaged journal, DiskError."""
        if self.problem is None and self._behind is None:
            with self._held(deadline):
                self._apply(self._journal.read())
        return self._seen(document_id)

    def seen(self, ids: Sequence[str], deadline: float = inf) -> list[StoredDocument | None]:
        """Read documents as searches of this process see them; None for an id that no document has."""
        return [self._seen(document_id) for document_id in ids]

    def _seen(self, document_id: str) -> StoredDocument | None:
        ordinal, sequence = self._overlay.find(document_id)
        if ordinal is None:
            return None
        (raw,) = self.snapshot.index.documents(np.array([ordinal]))
        return StoredDocument(raw, self.version(sequence))

    @property
    def position(self) -> int:
        """The number of the last change that this process has read or made."""
        return self._journal.sequence

    def followed(self, position: int) -> bool:
        """True if the searches of every process see the changes up to a position."""
        return self._follower.followed(position)

    def write(self, changes: Sequence[Change], deadline: float, *, wait: bool = False) -> list[Result]:
        """Make changes in their order, and return the result of each. Searches of this process see them. TimeoutError
        at the `perf_counter` time `deadline`, which leaves open whether they were made; DiskError if the journal or the
        overlay has no room for them, JournalError for a damaged journal."""
        call = changes, results = changes, Future[list[Result]]()
        self._waiting.append(call)
        try:
            with self._held(deadline):
                if not results.done():
                    self._commit(deadline)
        except BaseException:
            with suppress(ValueError):  # another call has begun with it
                self._waiting.remove(call)
            raise
        return results.result()

    def close(self) -> None:
        """Write and follow no more. Idempotent."""
        self._stop.set()
        self._thread.join(_JOIN_S)
        with self._lock:
            with suppress(JavaError):  # on a full disk; nothing of it is needed
                self._overlay.close()
            self._follower.close()
            self._journal.close()

    @contextmanager
    def _held(self, deadline: float) -> Iterator[None]:
        """Hold the journal and the overlay. TimeoutError if others do until the `perf_counter` time `deadline`."""
        if not self._lock.acquire(timeout=min(TIMEOUT_MAX, max(0.0, deadline - perf_counter()))):
            raise TimeoutError("Other writes took all the time.")
        try:
            yield
        finally:
            self._lock.release()

    def _commit(self, deadline: float) -> None:
        """Make the changes of all calls that wait."""
        if self.problem is not None:
            raise JournalError(self.problem)
        if self._behind is not None:
            self._catch_up()
        with self._journal.writing(deadline) as missed:
            self._apply(missed)
            if self._to_drop is not None:  # a bundle that is opened, but refused, writes nothing, and so drops nothing
                self._journal.drop(self._to_drop)
                self._to_drop = None
            calls = list[_Call]()
            with suppress(IndexError):
                while True:
                    calls.append(self._waiting.popleft())
            try:
                staged = _Staged(self, self._overlay, self._journal.sequence)
                outcomes = [[staged.add(change) for change in changes] for changes, _ in calls]
                if staged.records:
                    if self.written + sum(record.raw is not None for record in staged.records) > _MAX_WRITTEN:
                        raise DiskError(
                            f"{self._journal.folder}: {self.written:,} documents are written beside the bundle, of at "
                            f"most {_MAX_WRITTEN:,}.",
                            remedy=_COMPACT,
                        )
                    self._append(staged.records)
            except Exception as error:
                for _, results in calls:
                    results.set_exception(error)
                return
        for (_, results), outcome in zip(calls, outcomes, strict=True):
            results.set_result(outcome)

    def _append(self, records: Sequence[Record]) -> None:
        """Write changes to the journal and make them searchable, or neither."""
        sequence, overlay = self._journal.sequence + len(records), self._overlay
        self._journal.check_room(records)
        try:
            with self._journal.appending(records):
                overlay.apply(records, sequence)
                snapshot = overlay.prepare(sequence)
        except Exception as error:  # the overlay may have changes that the journal lacks
            self._behind = str(error)
            if isinstance(error, DiskError):
                raise
            raise DiskError(f"{self._journal.folder}: {self._behind}", remedy=_FREE) from error
        overlay.publish(snapshot)
        self._follower.tell(sequence)

    def _apply(self, records: Sequence[Record]) -> None:
        """Make changes searchable that others appended. DiskError if that fails, after which `_follow` tries again."""
        if not records:
            return
        try:
            self._overlay.apply(records, self._journal.sequence)
            self._overlay.publish(self._overlay.prepare(self._journal.sequence))
        except Exception as error:
            self._behind = _not_searched(error)
            raise DiskError(self._behind, remedy=_FREE) from error
        self._follower.tell(self._journal.sequence)

    def _follow(self) -> None:
        while self.problem is None and not self._stop.wait(_FOLLOW_S if self._behind is None else _AGAIN_S):
            try:
                if self._behind is not None:
                    with self._lock:
                        self._catch_up()
                    continue
                with suppress(TimeoutError), self._held(deadline=0.0):
                    self._apply(self._journal.read())
                if self._overlay.settle():
                    with self._lock:
                        self._overlay.publish(self._overlay.prepare(self.snapshot.sequence))
            except DiskError:
                _log.warning("the journal is followed again when the disk has room", extra={"reason": self._behind})
            except JavaError as error:
                self._behind = str(error)
            except Exception as error:
                if self._stop.is_set():  # what it used is closed
                    return
                self.problem = self.problem or str(error)
                _log.exception("the journal can't be followed")

    def _catch_up(self) -> None:
        """Make a new overlay of all changes, in place of one that could not take some, where the disk has room; to
        be called with the lock. JournalError if that does not help, and DiskError if there is no room."""
        self._journal.check_room(probe=True)
        former, self._journal.sequence = self._overlay, self._position
        try:
            self._overlay = self._replayed()
        except (JavaError, ValueError, OSError) as error:
            self._journal.check_room(probe=True)
            self.problem = f"{_not_searched(error)} Start the service again."
            raise JournalError(self.problem) from error
        self._behind = None
        self._follower.tell(self._journal.sequence)
        with suppress(JavaError, OSError):  # what is broken
            former.close()

    def _replayed(self) -> Overlay:
        """Make an overlay of all changes that the bundle lacks. JavaError, ValueError, and what the journal raises."""
        overlay, journal = self._opened(self._follower.fresh_index()), self._journal
        try:
            while records := journal.read(_AT_ONCE):
                overlay.apply(records, journal.sequence)
            overlay.publish(overlay.prepare(journal.sequence))
        except BaseException:
            overlay.close()
            raise
        return overlay


class _Staged:
    """Changes on their way into the journal, each over what the ones before it leave."""

    def __init__(self, store: LiveStore, overlay: Overlay, sequence: int) -> None:
        """`sequence` is the number of the last change in the journal."""
        self.records: list[Record] = []
        self._newest: dict[str, tuple[int, Record]] = {}  # of each document that changes, with its number
        self._store, self._overlay, self._sequence = store, overlay, sequence

    def add(self, change: Change) -> Result:
        """Add a change, and give what becomes of it."""
        try:
            stored = self._stored(change.id)
            check_version(change, stored)
            if change.document is None and stored is None:
                return None
            record = self._whole(change, stored)
        except (DocumentError, ConflictError) as error:
            return error
        self.records.append(record)
        number = self._sequence + len(self.records)
        self._newest[change.id] = number, record
        return Written(stored is None, self._store.version(number))

    def _stored(self, document_id: str) -> StoredDocument | None:
        if document_id not in self._newest:
            return self._store.seen([document_id])[0]
        number, record = self._newest[document_id]
        return None if record.raw is None else StoredDocument(record.raw, self._store.version(number))

    def _whole(self, change: Change, stored: StoredDocument | None) -> Record:
        """Make the record of a change, with the vector or the impacts of what is there if it has none."""
        document, dense = change.document, self._overlay.snapshot.dense
        if document is None:
            return Record(change.id)
        vector, impacts = change.vector, change.impacts
        if (vector is None and dense is not None) or impacts is None:
            if stored is None or not stored.has_text_of(document):
                raise unencoded(change, new=stored is None, dense=dense is not None)
            kept = self._newest[change.id][1] if change.id in self._newest else self._kept(change.id)
            vector = kept.vector if vector is None else vector
            impacts = kept.impacts if impacts is None else impacts
        return Record(change.id, document.raw, vector, _strongest(impacts, self._store.top_k))

    def _kept(self, document_id: str) -> Record:
        """Return vector and impacts of a document as the indexes hold them."""
        snapshot, (ordinal, _) = self._overlay.snapshot, self._overlay.find(document_id)
        if ordinal is None:
            raise ValueError(f"document {document_id!r} is not there")
        (impacts,) = snapshot.index.rows(ordinal, ordinal + 1)
        vector = None if snapshot.dense is None else snapshot.dense.vectors(np.array([ordinal]))[0]
        return Record(document_id, b"", vector, impacts)


def _not_searched(error: Exception) -> str:
    return f"Changes are on the disk, but not searched: {error}".removesuffix(".") + "."


def _strongest(impacts: Mapping[str, int], most: int | None) -> Mapping[str, int]:
    """Keep the terms of the largest impacts, as a bundle does; ties by term, token ids as numbers."""
    if most is None or len(impacts) <= most:
        return impacts
    order = sorted(impacts, key=lambda term: (-impacts[term], len(term), term))
    return {term: impacts[term] for term in order[:most]}
