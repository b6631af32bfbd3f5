"""The processes that follow a journal, and the Lucene indexes of its changes: one of each process, and a checkpoint.

A process has a folder NAME.follower beside the journal, with its index and a file that says how far it has made the
journal searchable. The file is locked as long as the process lives; what dead ones left is removed.

A checkpoint is the index of all changes up to one, so that a start indexes only what came later: a folder
SEQUENCE.NAME.checkpoint, whose name stands for the bundle and the writer of the change. It is no state: without it, or
where it is damaged, a start indexes all changes. Nothing is forced to the disk therefore; Lucene compares the checksums
of the files when it opens them.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from lightretriever.artifacts.errors import JournalError
from lightretriever.artifacts.files.atomic_file import writing

__all__ = ["Follower", "in_use"]

_log = logging.getLogger(__name__)
_FOLLOWER: Final = ".follower"
_CHECKPOINT: Final = ".checkpoint"
_TOLD: Final = "sequence"
_NEVER: Final = 1 << 63  # no change has this number
_STARTS: Final = _NEVER - 1  # told by a process that does not search yet
_NOT_ONE: Final = (FileNotFoundError, NotADirectoryError, IsADirectoryError)  # what is no folder of a process


class Follower:
    """This process as one that follows the journal of a folder."""

    def __init__(self, folder: Path, name_of: Callable[[int], str]) -> None:
        """`name_of` gives the name of a checkpoint up to a change. Raises DiskError."""
        self._folder, self._name_of = folder, name_of
        with writing(folder):
            self._path = Path(tempfile.mkdtemp("", "", folder))
            self._file = os.open(self._path / _TOLD, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.tell(_STARTS)
            self._path = self._path.rename(self._path.with_suffix(_FOLLOWER))  # locked, so nobody takes it for dead
        self._restores = count()
        self.index = self._path / "index"
        """Where the process has the files of its index: another folder after each `restore`."""

    def tell(self, sequence: int) -> None:
        """Say that searches of this process see the change numbered `sequence`. Raises OSError."""
        os.pwrite(self._file, sequence.to_bytes(8, "little"), 0)

    def check(self, last: int) -> None:
        """Remove what dead processes left; to be called by the one writer of all processes, who has read the `last`
        change. JournalError if one of them had made later ones searchable."""
        sequences = [_sequence_of(path) for path in self._folder.glob(f"*{_FOLLOWER}")]
        if (most := max(sequence for sequence in (0, *sequences) if sequence < _STARTS)) > last:
            raise JournalError(
                f"{self._folder}: the journal ends with change {last}, but change {most} was acknowledged.",
                remedy="`lightretriever restore COPY --live DIR` puts a copy in its place; with the journal itself as "
                "COPY, it goes on without the later changes.",
            )
        in_use(self._folder)

    def followed(self, sequence: int) -> bool:
        """True if searches of all processes see a change. A process that starts has no searches yet."""
        return not any(_behind(path, sequence) for path in self._folder.glob(f"*{_FOLLOWER}"))

    def saved(self) -> int:
        """Return the number of the last change in the newest checkpoint; 0 for none."""
        numbers = [path.name.partition(".")[0] for path in self._folder.glob(f"*{_CHECKPOINT}")]
        sequences = (int(number) for number in numbers if number.isdecimal())
        return max((sequence for sequence in sequences if self._checkpoint(sequence).exists()), default=0)

    def save(self, sequence: int, files: Sequence[Path]) -> None:
        """Write a checkpoint in place of those before it. `files` are those of the index. OSError."""
        scratch = self._path / "checkpoint"
        try:
            scratch.mkdir()
            for file in files:
                os.link(file, scratch / file.name)
            before = list(self._folder.glob(f"*{_CHECKPOINT}"))
            scratch.rename(self._checkpoint(sequence))
            for path in before:
                shutil.rmtree(path, ignore_errors=True)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def restore(self) -> int:
        """Link the files of the newest checkpoint into `index`, and give its number; 0 for none."""
        sequence, self.index = self.saved(), self._path / f"index-{next(self._restores)}"
        try:
            if sequence:
                shutil.copytree(self._checkpoint(sequence), self.index, copy_function=os.link)
        except (OSError, shutil.Error):  # another process has written a newer one
            shutil.rmtree(self.index, ignore_errors=True)
            return 0
        return sequence

    def discard(self, reason: str) -> None:
        """Remove the checkpoints and what was restored, and log why."""
        fields = {"file": str(self._folder), "reason": reason}
        _log.warning("checkpoint removed, so the whole journal is replayed", extra=fields)
        for path in self._folder.glob(f"*{_CHECKPOINT}"):
            shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self.index, ignore_errors=True)

    def close(self) -> None:
        """Follow no more, and remove the folder. Idempotent."""
        if self._path.exists():
            shutil.rmtree(self._path, ignore_errors=True)
            os.close(self._file)

    def _checkpoint(self, sequence: int) -> Path:
        return self._folder / f"{sequence:020d}.{self._name_of(sequence)}{_CHECKPOINT}"


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
