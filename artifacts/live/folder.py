"""The folder of a journal: what belongs together in it, and the processes that follow the journal.

SQLite replays a write-ahead log into whatever database lies beside it. So the file STAMP has the time at which the
database file was last written by its owner (`st_mtime_ns`); a copy that was laid over the file has another. The stamp
is 0 while the database file is written, and where a process was killed meanwhile.

A process that follows the journal has a folder NAME.follower, with a Lucene index of the changes and a file that says
how far it has made the journal searchable. It locks the file as long as it lives; what dead ones left is removed.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from lightretriever.artifacts.errors import JournalError
from lightretriever.artifacts.files.atomic import writing

DATABASE: Final = "journal.sqlite"
LOGS: Final = tuple(f"{DATABASE}{suffix}" for suffix in ("-wal", "-shm", "-journal"))  # SQLite's files beside it
STAMP: Final = f"{DATABASE}.stamp"
BEGUN: Final = f"{DATABASE}.begun"  # the database's name until it is whole
FORMER: Final = "before-restore-"  # how the folder begins that a restored journal's former files are in

_FOLLOWER: Final = ".follower"
_SIGNS: Final = ("*.checkpoint", f"*{_FOLLOWER}", "lock", STAMP, *LOGS, f"{FORMER}*")
_SMALLEST: Final = 512  # bytes of a database
_MAGIC: Final = b"SQLite format 3\0"
_UNKNOWN: Final = 20 * b"0"
_REPLACED: Final = b"replaced while in use"[:20]
_RESTORE: Final = "`lightretriever restore COPY --live DIR` puts a copy in its place"
_held: Final = dict[tuple[int, int], int]()
"""Database files by inode, open until this process ends: when it closes one, the system drops its locks on the file,
SQLite's too, and another process would remove the log in use."""


class Stamp:
    """The stamp of the database in a folder, held open. To be used by the one process that has locked the folder."""

    def __init__(self, folder: Path) -> None:
        """Raise JournalError where the database was replaced beside its log; DiskError."""
        self._database, self._path = folder / DATABASE, folder / STAMP
        with writing(self._path):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        logs = [name for name in LOGS if (folder / name).exists()]
        if self._noted() == _REPLACED or (logs and self._strange()):
            self.close()
            beside = f", but {' and '.join(logs)} beside it belong to another database" if logs else " while in use"
            raise JournalError(
                f"{self._database}: it was replaced{beside}.",
                remedy=f"{_RESTORE}. If the whole folder was copied, COPY is this file itself; its log is read, too.",
            )
        self._write(_text(self._database.stat()))
        inode = _inode(self._database)
        if inode not in _held:
            _held[inode] = os.open(self._database, os.O_RDONLY | os.O_CLOEXEC)
        self._held, self._inodes = _held[inode], {self._database: inode}

    def check(self) -> None:
        """Raise JournalError if the database or its log was removed or replaced, or another wrote to the database."""
        for path, inode in self._inodes.items():
            now = _inode(path)
            if now != inode or self._strange():
                self._write(_REPLACED)
                what = "replaced" if any(now) else "removed"
                raise JournalError(f"{path}: it was {what} while in use.", remedy=f"Stop the service; {_RESTORE}.")

    @contextmanager
    def changing(self) -> Iterator[None]:
        """The block writes to the database file itself, not to its log. JournalError as in `check`, DiskError."""
        self.check()
        self._write(_UNKNOWN)
        try:
            yield
        finally:
            with writing(self._database):
                os.fsync(self._held)  # its time, too
                self._write(_text(os.fstat(self._held)))

    def hold_logs(self) -> None:
        """Have `check` compare the log, too, from now on."""
        logs = [self._database.with_name(name) for name in LOGS]
        self._inodes |= {path: _inode(path) for path in logs if path.exists()}

    def close(self) -> None:
        """Close the stamp's file, after the database."""
        os.close(self._file)

    def _noted(self) -> bytes:
        return os.pread(self._file, len(_UNKNOWN), 0)

    def _strange(self) -> bool:
        """True if the database file was last written by another."""
        return self._noted() not in (b"", _UNKNOWN, _text(self._database.stat()))

    def _write(self, text: bytes) -> None:
        with writing(self._path):  # over what is there, so that a full disk has room for it
            os.pwrite(self._file, text, 0)
            os.fsync(self._file)


def _inode(path: Path) -> tuple[int, int]:
    """Return what tells a file from others; zeros if it is not there."""
    try:
        file = path.stat()
    except FileNotFoundError:
        return 0, 0
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


_TOLD: Final = "sequence"
_STARTS: Final = (1 << 63) - 1  # told by a process that does not search yet, instead of a change's number


class Follower:
    """This process as one that follows the journal of a folder."""

    def __init__(self, folder: Path) -> None:
        """Raise DiskError where the disk is full."""
        self._folder = folder
        with writing(folder):
            self._path = Path(tempfile.mkdtemp("", "", folder))
            self._file = os.open(self._path / _TOLD, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.tell(_STARTS)
            self._path = self._path.rename(self._path.with_suffix(_FOLLOWER))  # locked, so nobody takes it for dead
        self._indexes = count()

    def tell(self, sequence: int) -> None:
        """Say that searches of this process see the change numbered `sequence`. Raises OSError."""
        os.pwrite(self._file, sequence.to_bytes(8, "little"), 0)

    def check(self, last: int) -> None:
        """Remove what dead processes and former versions left; to be called by the one writer of all processes, who has
        read the `last` change. JournalError if one of them had made later ones searchable."""
        told = [_look(path)[0] for path in self._folder.glob(f"*{_FOLLOWER}")]
        if (most := max(sequence for sequence in (0, *told) if sequence < _STARTS)) > last:
            raise JournalError(
                f"{self._folder}: the journal ends with change {last}, but change {most} was acknowledged.",
                remedy="`lightretriever restore COPY --live DIR` puts a copy in its place; with the journal itself as "
                "COPY, it goes on without the later changes.",
            )
        followers(self._folder)
        for path in self._folder.glob("*.checkpoint"):  # of former versions
            shutil.rmtree(path, ignore_errors=True)

    def followed(self, sequence: int) -> bool:
        """True if searches of all processes see a change. A process that starts has no searches yet."""
        return all(told >= sequence for told in followers(self._folder))

    def fresh_index(self) -> Path:
        """Return a folder for the files of an index, which is not there yet."""
        return self._path / f"index-{next(self._indexes)}"

    def close(self) -> None:
        """Follow no more, and remove the folder. Idempotent."""
        if self._path.exists():
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._file)


def followers(folder: Path) -> list[int]:
    """Return what each process that follows the journal of a folder has told last; remove what dead ones left."""
    told = list[int]()
    for path in folder.glob(f"*{_FOLLOWER}"):
        sequence, lives = _look(path)
        if lives:
            told.append(sequence)
        else:
            shutil.rmtree(path, ignore_errors=True)
    return told


def _look(path: Path) -> tuple[int, bool]:
    """Return what the process of a folder has told last, 0 for nothing, and whether it lives."""
    try:
        with open(path / _TOLD, "rb", opener=_at_once) as file:
            content = file.read(8)
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                lives = False
            except BlockingIOError:
                lives = True
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):  # no folder of a process
        return 0, False
    return int.from_bytes(content, "little") if len(content) == 8 else 0, lives


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # of what is no file, such as a pipe, nobody waits for a writer
