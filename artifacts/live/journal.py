"""The journal of changes after a bundle: a SQLite database in which each is on the disk before it is acknowledged.

Changes are numbered from 1 for ever, each with a checksum, because SQLite has none for its pages. The database has a
write-ahead log, so readers wait for nobody, and what a killed writer left is as if it had not begun. The one writer
of all processes has locked the folder.

Each opening that writes has a random name, which the database keeps with the number of the last change before. A
change is known by its number and its writer's name, so that a change after a restore is never taken for one before.
"""

import fcntl
import logging
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from math import inf
from pathlib import Path
from time import perf_counter, sleep
from typing import Annotated, Any, Final, NamedTuple, Self
from uuid import uuid4

import numpy as np
import orjson
from pydantic import Field, TypeAdapter

from lightretriever.artifacts.bundle.manifest import Manifest, check_outside
from lightretriever.artifacts.documents.bounds import MAX_IMPACT
from lightretriever.artifacts.documents.document import stored_object
from lightretriever.artifacts.dtypes import Float32Array
from lightretriever.artifacts.errors import DiskError, JournalError
from lightretriever.artifacts.files.atomic import sync, writing
from lightretriever.artifacts.live.folder import BEGUN, DATABASE, FORMER, LOGS, STAMP, Stamp, check_files, followers

FREE_BYTES: Final = 1 << 20  # that a disk keeps: with less, nothing is written beside a bundle

_log = logging.getLogger(__name__)
_TABLES: Final = (
    "CREATE TABLE header (facts TEXT NOT NULL)",
    # AUTOINCREMENT notes the last number, also of changes that were dropped.
    """CREATE TABLE changes (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, raw BLOB, vector BLOB, impacts BLOB NOT NULL,
        checksum INTEGER NOT NULL
    )""",
)
_WRITERS: Final = "CREATE TABLE IF NOT EXISTS writers (position INTEGER PRIMARY KEY, name TEXT NOT NULL)"
_OF_THE_DISK: Final = frozenset(
    {
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL),
    }
)
_IMPACTS: Final = TypeAdapter(dict[str, Annotated[int, Field(ge=1, le=MAX_IMPACT)]])
_MAX_LENGTH: Final = 2.0  # of a vector: its length is 1, but for what the codes of an index made of it
_POLL_S: Final = 0.002
_COPIES: Final = 4  # of a change on the disk: in the log, the database, and the index before and after a merge
_FREE: Final = "Look at free space and permissions, and run the same command again."
_AT_ONCE: Final = 4096  # changes of a copy that are checked together
_CLOSE_S: Final = 1.0  # to wait for another writer before the database is closed
_LOG_BYTES: Final = 4 << 20  # of the log from which on it is written back to the database
_RESTORE: Final = (
    "`lightretriever restore COPY --live DIR` puts a copy in its place. Or give an empty folder: the bundle is then "
    "served without the changes."
)


class Record(NamedTuple):
    """A document as it was written, whole, with its vector (D,) of length 1, None without a dense leg, and its impacts
    by term; `raw` is its JSON, None for one that was deleted."""

    id: str
    raw: bytes | None = None
    vector: Float32Array | None = None
    impacts: Mapping[str, int] = {}


class Journal:
    """A journal, open for reading and writing beside a bundle. One thread at a time."""

    sequence: int
    """The number of the last change that was read or appended; at first, of the last one that the bundle has."""

    name: str
    """A random name, which tells a journal from one that another folder has."""

    dimension: int | None
    """Number of values in a vector; None without a dense leg."""

    def __init__(self, folder: Path, manifest: Manifest | None, *, begin: bool = True) -> None:
        """Open the journal of a folder, or `begin` one for a bundle; without a manifest, whatever bundle it is for.
        JournalError for none, a damaged one, one of another model, one that lacks the changes after the bundle's, and
        files that don't belong together; BundleError for a folder inside a bundle; DiskError."""
        self.folder = folder
        self._path = folder / DATABASE
        self._writer = uuid4().hex[:12]  # name as a writer
        self._process = os.getpid()  # a forked one would share its locks, and SQLite's handle
        self._named = False  # whether the database has it
        self._writers: Mapping[int, str] = {}  # each by the number of the last change before
        check_outside(self._path)
        if not begin and not self._path.exists():
            raise JournalError(f"{folder}: there is no journal.", remedy="Give the folder that `serve --live` names.")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with self._locked(inf), self._translated():
                if not check_files(folder) and manifest is not None:
                    self._begin(manifest)
                self._stamp = Stamp(folder)
                with self._stamp.changing():
                    self._database = self._connected(self._path)
                self._opened(manifest)
                self._stamp.hold_logs()
        except BaseException:
            self.close()
            raise

    def origin(self, sequence: int) -> str:
        """Return the random name of the writer of a change; the journal's name where no writer is known."""
        return self._writers[max((position for position in self._writers if position < sequence), default=-1)]

    def read(self, most: int = -1) -> list[Record]:
        """Return the changes since the last one read or appended, up to `most` if that is not negative.
        JournalError."""
        with self._translated():
            rows = self._database.execute(
                "SELECT sequence, id, raw, vector, impacts, checksum FROM changes WHERE sequence > ? ORDER BY sequence"
                " LIMIT ?",
                (self.sequence, most),
            ).fetchall()
        records = list[Record]()
        for number, (sequence, *parts, checksum) in enumerate(rows, start=self.sequence + 1):
            try:
                whole = sequence == number and _checksum(sequence, *parts) == checksum
                record = _record(self.dimension, *parts)
            except (TypeError, ValueError):  # a column has another kind of value
                whole = False
            if not whole:
                raise self._damaged(f"behind change {number - 1}")
            records.append(record)
        if records:
            self._read_writers()
        self.sequence += len(records)
        return records

    @contextmanager
    def writing(self, deadline: float) -> Iterator[list[Record]]:
        """Be the one writer of all processes in the block; yields the changes since the last one read or appended.
        TimeoutError if another is the writer until the `perf_counter` time `deadline`, JournalError."""
        with self._locked(deadline):
            self._stamp.check()
            missed = self.read()
            if self.sequence != self._last():
                raise self._damaged(f"behind change {self.sequence}")
            if not self._named:
                self._read_writers()
                self._writers = {**self._writers, self.sequence: self._writer}
            yield missed
            log = self.folder / LOGS[0]
            if log.exists() and log.stat().st_size > _LOG_BYTES:
                self._write_back()

    @contextmanager
    def appending(self, records: Sequence[Record]) -> Iterator[None]:
        """Append changes, which are on the disk after the block; an exception in it leaves the journal as it was. To be
        called in the block of `writing`. DiskError."""
        rows = [(number, *_row(number, record)) for number, record in enumerate(records, start=self.sequence + 1)]
        with self._changing():
            self._database.executemany("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", rows)
            if not self._named:
                self._database.execute("INSERT OR REPLACE INTO writers VALUES (?, ?)", (self.sequence, self._writer))
            yield
        self.sequence += len(records)
        self._named = True

    def check_room(self, records: Sequence[Record] = (), *, probe: bool = False) -> None:
        """Raise DiskError where the disk has no room for changes, in the log and in the index, or on a `probe` takes no
        file of some size."""
        size = sum(len(one.raw or b"") + (0 if one.vector is None else one.vector.nbytes) for one in records)
        free, needed = free_bytes(self.folder), _COPIES * size + FREE_BYTES
        if free < needed:
            raise DiskError(f"{self._path} can't be written: {free:,} of {needed:,} bytes are free.", remedy=_FREE)
        if probe:
            with writing(self._path), tempfile.TemporaryFile(dir=self.folder, buffering=0) as file:
                file.write(bytes(FREE_BYTES))

    def drop(self, position: int) -> None:
        """Remove the changes numbered up to `position`. To be called in the block of `writing`. DiskError."""
        with self._changing():
            self._database.execute("DELETE FROM changes WHERE sequence <= ?", (position,))
            last = "SELECT max(position) FROM writers WHERE position < ?"  # who made the change at `position`
            self._database.execute(f"DELETE FROM writers WHERE position < ({last})", (position,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Idempotent. Does nothing in a forked process, whose parent has them."""
        if self._lock < 0 or os.getpid() != self._process:
            return
        if hasattr(self, "_database"):
            late = perf_counter() + _CLOSE_S
            with suppress(TimeoutError, DiskError, JournalError), self._locked(late), self._stamp.changing():
                self._database.close()  # the last one to close writes back the log
            self._database.close()
        if hasattr(self, "_stamp"):
            self._stamp.close()
        os.close(self._lock)
        self._lock = -1

    def _begin(self, manifest: Manifest) -> None:
        """Make a journal without changes, which has its name when it is whole."""
        new = self._path.with_name(BEGUN)
        for suffix in ("", "-wal", "-shm", "-journal"):
            new.with_name(new.name + suffix).unlink(missing_ok=True)
        facts = orjson.dumps({"journal": uuid4().hex[:12], "bundle": manifest.digest} | _facts(manifest)).decode()
        with closing(self._connected(new)) as database:
            for table in (*_TABLES, _WRITERS):
                database.execute(table)
            database.execute("INSERT INTO header VALUES (?)", (facts,))
        with writing(self._path):
            new.rename(self._path)
            os.fsync(self._lock)

    def _connected(self, path: Path) -> sqlite3.Connection:
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")  # a change is on the disk when it is acknowledged
        database.execute("PRAGMA wal_autocheckpoint = 0")  # see `_write_back`
        return database

    def _write_back(self) -> None:
        """Write the log back to the database, as far as nobody reads older pages of it."""
        try:
            with self._translated(), self._stamp.changing():
                self._database.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except DiskError as error:  # the changes are in the log
            _log.warning("the log of the journal was not written back", extra={"reason": str(error)})

    def _read_writers(self) -> None:
        with self._translated():
            rows = self._database.execute("SELECT position, name FROM writers").fetchall()
        self._writers = {-1: self.name, **dict(rows)}

    def _opened(self, manifest: Manifest | None) -> None:
        """Compare the header and the numbers with the bundle's."""
        self._database.execute(_WRITERS)  # older journals have none
        facts = None if manifest is None else _facts(manifest)
        try:
            header = orjson.loads(self._value("SELECT facts FROM header"))
            self.name, self.dimension = header["journal"], header["dimension"]
            stored = {name: header[name] for name in facts or {}}
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged("in its header") from error
        self._read_writers()
        for name, wanted in (facts or {}).items():
            if stored[name] != wanted:
                raise JournalError(
                    f"{self.folder}: the journal's {name} is {stored[name]}, the bundle's {wanted}.",
                    remedy="Serve a bundle of the same model, or give an empty folder.",
                )
        live, last = None if manifest is None else manifest.live, self._last()
        first = self._value(f"SELECT coalesce(min(sequence), {last + 1}) FROM changes")
        self.sequence = first - 1 if manifest is None else 0
        if live is not None and live.journal.partition(".")[0] == self.name:
            self.sequence = live.position
        if not first - 1 <= self.sequence <= last:
            raise JournalError(
                f"{self.folder}: the journal begins behind change {first - 1} and ends with change {last}, the bundle "
                f"has those up to {self.sequence}.",
                remedy="Serve the bundle that `lightretriever compact` made of them, or give an empty folder.",
            )
        if live is not None and self.sequence and live.journal not in (self.name, self.identity()):
            raise JournalError(
                f"{self.folder}: the journal was restored, and the bundle has changes that are not in it.",
                remedy="Serve a bundle that is older than the copy, or give an empty folder.",
            )

    def identity(self) -> str:
        """Return the journal's name, and that of the writer of the last change, for the manifest of a bundle."""
        return f"{self.name}.{self.origin(self.sequence)}"

    def _last(self) -> int:
        """Return the number of the last change that was ever appended."""
        last = self._value("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'changes'")
        if not isinstance(last, int):
            raise self._damaged("in its numbers")
        return last

    def _value(self, query: str) -> Any:
        """Return the only value that a query finds."""
        with self._translated():
            return self._database.execute(query).fetchone()[0]

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Make all changes of the block, or none."""
        with self._translated():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            finally:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        self._refuse_forked()
        try:
            yield
        except UnicodeDecodeError as error:  # of a damaged file's bytes in what SQLite says
            raise self._damaged("and can't be read") from error
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _OF_THE_DISK:
                raise self._damaged(f"({error})") from error
            raise DiskError(f"{self._path} can't be written: {error}.", remedy=_FREE) from error

    @contextmanager
    def _locked(self, deadline: float) -> Iterator[None]:
        self._refuse_forked()
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if perf_counter() >= deadline:
                    raise TimeoutError(f"{self.folder}: another process wrote to the journal all the time.") from None
                sleep(_POLL_S)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _refuse_forked(self) -> None:
        if os.getpid() != self._process:
            raise JournalError(f"{self.folder} was opened in another process.", remedy="Open it in each process.")

    def _damaged(self, where: str) -> JournalError:
        return JournalError(f"{self._path}: the journal is damaged {where}.", remedy=_RESTORE)


def free_bytes(folder: Path) -> float:
    """Return the free space on the disk of a folder; infinity where the system doesn't say."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize if disk.f_blocks else inf


def _facts(manifest: Manifest) -> dict[str, Any]:
    """Return what a journal and its bundles have in common."""
    dimension = None if manifest.dense is None else manifest.dimension
    return {"dimension": dimension, "vocabulary": manifest.sparse.vocabulary, "model": manifest.model.sha256}


def _row(sequence: int, record: Record) -> tuple[str, bytes | None, bytes | None, bytes, int]:
    vector = None if record.vector is None else record.vector.astype("<f4").tobytes()
    parts = (record.id, record.raw, vector, orjson.dumps(dict(record.impacts)))
    return *parts, _checksum(sequence, *parts)


def _record(dimension: int | None, document_id: str, raw: bytes | None, vector: bytes | None, impacts: bytes) -> Record:
    """Read the columns of a change. TypeError and ValueError for others than `_row` gives."""
    record = Record(document_id, raw, None if vector is None else np.frombuffer(vector, "<f4"))
    if raw is not None:
        if (stored_id := stored_object(raw)["_id"]) != document_id:
            raise ValueError(f"the document's id is {stored_id!r:.80}")
        if (None if record.vector is None else record.vector.size) != dimension:
            raise ValueError("the vector has another size")
        if record.vector is not None and not 0 < float(np.linalg.norm(record.vector)) < _MAX_LENGTH:
            raise ValueError("the vector has no direction")
    return record._replace(impacts=_IMPACTS.validate_json(impacts))


def _checksum(sequence: int, document_id: str, *parts: bytes | None) -> int:
    checksum = zlib.crc32(f"{sequence} {document_id}".encode())
    for part in parts:
        checksum = zlib.crc32(part or b"", checksum)
    return checksum


def restore(copy: Path, folder: Path) -> tuple[int, Path | None]:
    """Put a copy of a journal, and the log beside it, in place of the journal in a folder, whose processes have ended.
    Return the number of the copy's last change, and the folder of the former files, None if there were none.
    JournalError for a copy that is no whole journal, and for a folder in use, which stays as it is; DiskError."""
    if not copy.is_file():
        raise JournalError(f"{copy}: there is no such file.", remedy="Give the file that a backup made.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory("", "restore-", folder) as scratch:
            database = Path(scratch, DATABASE)
            shutil.copyfile(copy, database)
            if (log := copy.with_name(f"{copy.name}-wal")).is_file():
                shutil.copyfile(log, database.with_name(LOGS[0]))
            with Journal(database.parent, None, begin=False) as journal:
                while journal.read(_AT_ONCE):
                    pass
                with journal.writing(0.0):  # compares the number of the last change
                    sequence = journal.sequence
            return sequence, _swap(database, folder)


def _swap(database: Path, folder: Path) -> Path | None:
    """Put a database in place of a folder's, whose files get a folder of their own."""
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if followers(folder):
            raise JournalError(f"{folder}: a process has the journal open.", remedy="Stop the service first.")
        former = [folder / name for name in (DATABASE, *LOGS, STAMP) if (folder / name).exists()]
        kept = Path(tempfile.mkdtemp("", FORMER, folder)) if former else None
        for path in former:
            path.rename(kept / path.name if kept else path)
        database.rename(folder / DATABASE)
        for path in filter(None, (folder, kept)):
            sync(path)
        return kept
    finally:
        os.close(lock)
