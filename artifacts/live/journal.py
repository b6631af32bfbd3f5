"""The journal of changes after a bundle: a SQLite database in which each is on the disk before it is acknowledged.

Changes are numbered from 1 for ever, each with a checksum, because SQLite has none for its pages. The database has a
write-ahead log, so readers wait for nobody, and what a killed writer left is as if it had not begun. The one writer
of all processes holds a lock on a file of its own.
"""

import fcntl
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import orjson
from pydantic import TypeAdapter

from lightretriever.artifacts.bundle.manifest import Manifest, check_outside
from lightretriever.artifacts.errors import DiskError, JournalError
from lightretriever.artifacts.files.atomic_file import writing

__all__ = ["Journal", "Record"]

_FILE: Final = "journal.sqlite"
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS header (facts TEXT NOT NULL)",
    # AUTOINCREMENT notes the last number, also of changes that were dropped.
    """CREATE TABLE IF NOT EXISTS changes (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, raw BLOB, vector BLOB, impacts BLOB NOT NULL,
        checksum INTEGER NOT NULL
    )""",
)
_OF_THE_DISK: Final = frozenset(
    {
        *(sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY),
        *(sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_PROTOCOL),
    }
)
_IMPACTS: Final = TypeAdapter(dict[str, int])
_POLL_S: Final = 0.002
_RESTORE: Final = (
    "Restore the folder from a copy, or move it away: the bundle is then served without the changes in it."
)


class Record(NamedTuple):
    """A document as it was written, whole, with its vector (D,) of length 1, None without a dense leg, and its impacts
    by term; `raw` is its JSON, None for one that was deleted."""

    id: str
    raw: bytes | None = None
    vector: npt.NDArray[np.float32] | None = None
    impacts: Mapping[str, int] = {}


class Journal:
    """A journal, open for reading and writing beside a bundle. One thread at a time."""

    sequence: int
    """The number of the last change that was read or appended; at first, of the last one that the bundle has."""

    name: str
    """A random name, which tells a journal from one that another folder has."""

    def __init__(self, folder: Path, manifest: Manifest, *, begin: bool = True) -> None:
        """Open the journal of a folder, or `begin` one for a bundle. JournalError for a damaged one, for one of another
        model, for one without the changes after those that the bundle has, and for none; BundleError for a folder
        inside a bundle; DiskError."""
        self.folder = folder
        self._path = folder / _FILE
        check_outside(self._path)
        if not begin and not self._path.is_file():
            raise JournalError(f"{folder}: there is no journal.", remedy="Give the folder that `serve --live` names.")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("ab")
        try:
            with self._locked(inf), self._translated():
                self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
                self._opened(manifest)
        except BaseException:
            self.close()
            raise

    def read(self, most: int = -1) -> list[Record]:
        """Give the changes since the last one read or appended, up to `most` if that is not negative. JournalError."""
        with self._translated():
            rows = self._database.execute(
                "SELECT sequence, id, raw, vector, impacts, checksum FROM changes WHERE sequence > ? ORDER BY sequence"
                " LIMIT ?",
                (self.sequence, most),
            ).fetchall()
        found = list[Record]()
        for number, (sequence, *parts, checksum) in enumerate(rows, start=self.sequence + 1):
            try:
                whole = sequence == number and _checksum(sequence, *parts) == checksum
                record = _record(*parts)
            except (TypeError, ValueError):  # a column has another kind of value
                whole = False
            if not whole:
                raise self._damaged(f"behind change {number - 1}")
            found.append(record)
        self.sequence += len(found)
        return found

    @contextmanager
    def writing(self, until: float) -> Iterator[list[Record]]:
        """Be the one writer of all processes in the block; yields the changes since the last one read or appended.
        TimeoutError if another is the writer until the `perf_counter` time `until`, JournalError."""
        with self._locked(until):
            missed = self.read()
            if self.sequence != self._last():
                raise self._damaged(f"behind change {self.sequence}")
            yield missed

    def append(self, records: Sequence[Record]) -> None:
        """Write changes, and return when they are on the disk. To be called in the block of `writing`. DiskError, after
        which the journal is as it was."""
        rows = [(number, *_row(number, one)) for number, one in enumerate(records, start=self.sequence + 1)]
        with self._changing():
            self._database.executemany("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", rows)
        self.sequence += len(records)

    def drop(self, position: int) -> None:
        """Remove the changes numbered up to `position`. To be called in the block of `writing`. DiskError."""
        with self._changing():
            self._database.execute("DELETE FROM changes WHERE sequence <= ?", (position,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Idempotent."""
        if hasattr(self, "_database"):
            self._database.close()
        self._lock.close()

    def _opened(self, manifest: Manifest) -> None:
        """Make the tables if they are not there, and compare the header and the numbers with the bundle's."""
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")  # a change is on the disk when it is acknowledged
        dimension = None if manifest.dense is None else manifest.dimension
        facts = {"dimension": dimension, "vocabulary": manifest.sparse.vocabulary, "model": manifest.model.sha256}
        begun = orjson.dumps({"journal": uuid4().hex[:12], "bundle": manifest.digest} | facts).decode()
        with self._changing():
            for table in _TABLES:
                self._database.execute(table)
            self._database.execute("INSERT INTO header SELECT ? WHERE NOT EXISTS (SELECT * FROM header)", (begun,))
        try:
            header = orjson.loads(self._one("SELECT facts FROM header"))
            self.name, found = header["journal"], {name: header[name] for name in facts}
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged("in its header") from error
        for name, wanted in facts.items():
            if found[name] != wanted:
                raise JournalError(
                    f"{self.folder}: the journal's {name} is {found[name]}, the bundle's {wanted}.",
                    remedy="Serve a bundle of the same model, or give an empty folder.",
                )
        live, last = manifest.live, self._last()
        self.sequence = live.position if live is not None and live.journal == self.name else 0
        first = self._one(f"SELECT coalesce(min(sequence), {last + 1}) FROM changes")
        if not first - 1 <= self.sequence <= last:
            raise JournalError(
                f"{self.folder}: the journal begins behind change {first - 1} and ends with change {last}, the bundle "
                f"has those up to {self.sequence}.",
                remedy="Serve the bundle that `lightretriever compact` made of them, or give an empty folder.",
            )

    def _last(self) -> int:
        """Give the number of the last change that was ever appended."""
        last = self._one("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'changes'")
        if not isinstance(last, int):
            raise self._damaged("in its numbers")
        return last

    def _one(self, query: str) -> Any:
        """Give the only value that a query finds."""
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
        try:
            yield
        except UnicodeDecodeError as error:  # of a damaged file's bytes in what SQLite says
            raise self._damaged("and can't be read") from error
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF not in _OF_THE_DISK:
                raise self._damaged(f"({error})") from error
            raise DiskError(
                f"{self._path} can't be written: {error}.",
                remedy="Look at free space and permissions, and run the same command again.",
            ) from error

    @contextmanager
    def _locked(self, until: float) -> Iterator[None]:
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if perf_counter() >= until:
                    raise TimeoutError(f"{self.folder}: another process wrote to the journal all the time.") from None
                sleep(_POLL_S)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _damaged(self, where: str) -> JournalError:
        return JournalError(f"{self._path}: the journal is damaged {where}.", remedy=_RESTORE)


def _row(sequence: int, record: Record) -> tuple[str, bytes | None, bytes | None, bytes, int]:
    vector = None if record.vector is None else record.vector.astype("<f4").tobytes()
    parts = (record.id, record.raw, vector, orjson.dumps(dict(record.impacts)))
    return *parts, _checksum(sequence, *parts)


def _record(document_id: str, raw: bytes | None, vector: bytes | None, impacts: bytes) -> Record:
    """Read the columns of a change. TypeError and ValueError for other ones than `_row` gives."""
    values = None if vector is None else np.frombuffer(vector, "<f4")
    return Record(document_id, raw, values, _IMPACTS.validate_json(impacts))


def _checksum(sequence: int, document_id: str, *parts: bytes | None) -> int:
    checksum = zlib.crc32(f"{sequence} {document_id}".encode())
    for part in parts:
        checksum = zlib.crc32(part or b"", checksum)
    return checksum
