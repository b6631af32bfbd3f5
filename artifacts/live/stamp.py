"""What belongs together in the folder of a journal: the database, its write-ahead log, and signs of a journal.

SQLite replays a write-ahead log into whatever database lies beside it. So the file STAMP has the time at which the
database file was last written by its owner (`st_mtime_ns`); a copy that was laid over the file has another. The stamp
is 0 while the database file is written, and where a process was killed meanwhile.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from lightretriever.artifacts.errors import JournalError
from lightretriever.artifacts.files.atomic import writing

DATABASE: Final = "journal.sqlite"
LOGS: Final = tuple(f"{DATABASE}{suffix}" for suffix in ("-wal", "-shm", "-journal"))
"""What SQLite writes beside the database."""

STAMP: Final = f"{DATABASE}.stamp"
BEGUN: Final = f"{DATABASE}.begun"
"""The database's name until it is whole."""

FORMER: Final = "before-restore-"
"""How the folder begins that a restored journal's former files are in."""

_SIGNS: Final = ("*.checkpoint", "*.follower", "lock", STAMP, *LOGS, f"{FORMER}*")
_SMALLEST: Final = 512  # bytes of a database
_MAGIC: Final = b"SQLite format 3\0"
_UNKNOWN: Final = 20 * b"0"
_REPLACED: Final = b"replaced while in use"[:20]
_RESTORE: Final = "`lightretriever restore COPY --live DIR` puts a copy in its place"
_STOP: Final = f"Stop the service; {_RESTORE}."


class _Held:
    """The file of a database, open as long as this process has a stamp of it: when a process closes a file, the system
    drops its locks on it, SQLite's too, and another process would remove the log in use."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        os.close(self.file)


_held: Final = WeakValueDictionary[tuple[int, int], _Held]()


class Stamp:
    """The stamp of the database in a folder, held open. To be used by the one process that has locked the folder."""

    def __init__(self, folder: Path) -> None:
        """Raise JournalError where the database was replaced beside its log; DiskError."""
        self._database, self._path = folder / DATABASE, folder / STAMP
        with writing(self._path):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._stat = self._database.stat()
        logs = [name for name in LOGS if (folder / name).exists()]
        if self._noted() == _REPLACED or (logs and self._strange()):
            self.close()
            beside = f", but {' and '.join(logs)} beside it belong to another database" if logs else " while in use"
            raise JournalError(
                f"{self._database}: it was replaced{beside}.",
                remedy=f"{_RESTORE}. If the whole folder was copied, COPY is this file itself; its log is read, too.",
            )
        self._write(_text(self._stat))
        inode = self._stat.st_dev, self._stat.st_ino
        self._held = _held[inode] = _held.get(inode) or _Held(self._database)
        self._inodes: dict[Path, tuple[int, int] | None] = {self._database: inode}

    def check(self) -> None:
        """Raise JournalError if the database or its log was removed or replaced, or another wrote to the database."""
        for path, inode in self._inodes.items():
            now = _inode(path)
            if now != inode or self._strange():
                self._write(_REPLACED)
                what = "replaced" if now else "removed"
                raise JournalError(f"{path}: it was {what} while in use.", remedy=_STOP)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """The block writes to the database file itself, not to its log. JournalError as in `check`, DiskError."""
        self.check()
        self._write(_UNKNOWN)
        try:
            yield
        finally:
            with writing(self._database):
                os.fsync(self._held.file)  # its time, too
                self._write(_text(os.fstat(self._held.file)))

    def hold_logs(self) -> None:
        """Have `check` compare the log, too, from now on."""
        logs = [self._database.with_name(name) for name in LOGS]
        self._inodes |= {path: _inode(path) for path in logs if path.exists()}

    def close(self) -> None:
        """Close the files, after the database."""
        os.close(self._file)
        if hasattr(self, "_held"):
            del self._held

    def _noted(self) -> bytes:
        return os.pread(self._file, len(_UNKNOWN), 0)

    def _strange(self) -> bool:
        """True if the database file was last written by another."""
        return self._noted() not in (b"", _UNKNOWN, _text(self._database.stat()))

    def _write(self, text: bytes) -> None:
        with writing(self._path):  # over what is there, so that a full disk has room for it
            os.pwrite(self._file, text, 0)
            os.fsync(self._file)


def _inode(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from others; None if it is not there."""
    try:
        file = path.stat()
    except FileNotFoundError:
        return None
    return file.st_dev, file.st_ino


def _text(file: os.stat_result) -> bytes:
    return f"{file.st_mtime_ns:020d}".encode()


def check_files(folder: Path) -> bool:
    """Return whether a folder has a database. Raise JournalError for one that is empty or tiny, for none beside the
    signs of one or a database of another name, and for what is no regular file."""
    for name in (DATABASE, STAMP, *LOGS):
        if (folder / name).exists() and not (folder / name).is_file():
            raise JournalError(f"{folder / name}: it is no regular file.", remedy="Remove it.")
    database, remedy = folder / DATABASE, f"{_RESTORE}. To serve the bundle without them, give an empty folder."
    if database.exists():
        if (size := database.stat().st_size) < _SMALLEST:
            raise JournalError(f"{database}: it has {size} bytes, so its changes are lost.", remedy=remedy)
        return True
    names = [path.name for sign in _SIGNS for path in folder.glob(sign)]
    for path in filter(Path.is_file, folder.iterdir()):
        with writing(path), path.open("rb") as file:
            names += [path.name] if file.read(len(_MAGIC)) == _MAGIC else []
    if signs := sorted(name for name in names if not name.startswith(BEGUN)):
        raise JournalError(f"{database}: it is missing beside {signs[0]}, so its changes are lost.", remedy=remedy)
    return False
