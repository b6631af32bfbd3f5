"""The processes that follow a journal, each with a Lucene index of its changes.

A process has a folder NAME.follower beside the journal, with its index and a file that says how far it has made the
journal searchable. The file is locked as long as the process lives; what dead ones left is removed.
"""

import fcntl
import os
import shutil
import tempfile
from itertools import count
from pathlib import Path
from typing import Final

from lightretriever.artifacts.errors import JournalError
from lightretriever.artifacts.files.atomic import writing

_FOLLOWER: Final = ".follower"
_TOLD: Final = "sequence"
_NEVER: Final = 1 << 63  # no change has this number
_STARTS: Final = _NEVER - 1  # told by a process that does not search yet
_NOT_ONE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)  # what is no folder of a process


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
        sequences = [_sequence_of(path) for path in self._folder.glob(f"*{_FOLLOWER}")]
        if (most := max(sequence for sequence in (0, *sequences) if sequence < _STARTS)) > last:
            raise JournalError(
                f"{self._folder}: the journal ends with change {last}, but change {most} was acknowledged.",
                remedy="`lightretriever restore COPY --live DIR` puts a copy in its place; with the journal itself as "
                "COPY, it goes on without the later changes.",
            )
        in_use(self._folder)
        for path in self._folder.glob("*.checkpoint"):
            shutil.rmtree(path, ignore_errors=True)

    def followed(self, sequence: int) -> bool:
        """True if searches of all processes see a change. A process that starts has no searches yet."""
        return not any(_behind(path, sequence) for path in self._folder.glob(f"*{_FOLLOWER}"))

    def fresh_index(self) -> Path:
        """Return a folder for the files of an index, which is not there yet."""
        return self._path / f"index-{next(self._indexes)}"

    def close(self) -> None:
        """Follow no more, and remove the folder. Idempotent."""
        if self._path.exists():
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._file)


def in_use(folder: Path) -> bool:
    """True if a process follows the journal of a folder."""
    return sum(_behind(path, _NEVER) for path in folder.glob(f"*{_FOLLOWER}")) > 0


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # what is no file, such as a pipe, makes nobody wait


def _sequence_of(path: Path) -> int:
    """Return what the process of a folder has told last; 0 for nothing."""
    try:
        with open(path / _TOLD, "rb", opener=_opened) as file:
            content = file.read(8)
    except _NOT_ONE:
        return 0
    return int.from_bytes(content, "little") if len(content) == 8 else 0


def _behind(path: Path, sequence: int) -> bool:
    """Return whether the process of a folder lives and does not see the change; remove what a dead one left."""
    if _sequence_of(path) >= sequence:
        return False
    try:
        with open(path / _TOLD, "rb", opener=_opened) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except _NOT_ONE:
        pass
    shutil.rmtree(path, ignore_errors=True)
    return False
