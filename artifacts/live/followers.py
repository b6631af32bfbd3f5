"""The processes that follow a journal: how far each has made it searchable, and the folder of its index."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

from lightretriever.artifacts.files.atomic_file import writing

__all__ = ["Follower"]

_SUFFIX: Final = ".follower"
_TOLD: Final = "sequence"
_NEVER: Final = 1 << 63  # no change has this number
_POLL_S: Final = 0.01


class Follower:
    """One that follows the journal of a folder. It has a folder there, with a file that says how far it is, and that is
    locked as long as its process lives; what dead processes left is removed."""

    def __init__(self, folder: Path) -> None:
        """Raises DiskError."""
        self._folder = folder
        with writing(folder):
            for path in folder.glob(f"*{_SUFFIX}"):
                _behind(path, _NEVER)
            self.path = Path(tempfile.mkdtemp("", "", folder))
            self._file = os.open(self.path / _TOLD, os.O_RDWR | os.O_CREAT)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.tell(0)
            self.path = self.path.rename(self.path.with_suffix(_SUFFIX))  # locked, so nobody takes it for a dead one's
        self.index = self.path / "index"
        """Where the process has the files of its index."""

    def tell(self, sequence: int) -> None:
        """Say that searches of this process see the change numbered `sequence`. Raises OSError."""
        os.pwrite(self._file, sequence.to_bytes(8, "little"), 0)

    def wait(self, sequence: int, until: float) -> None:
        """Wait until searches of all processes see a change. TimeoutError at the `perf_counter` time `until`."""
        for path in self._folder.glob(f"*{_SUFFIX}"):
            while _behind(path, sequence):
                if perf_counter() >= until:
                    raise TimeoutError(f"another process does not see change {sequence} yet")
                sleep(_POLL_S)

    def close(self) -> None:
        """Follow no more, and remove the folder. Idempotent."""
        if self.path.exists():
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._file)


def _behind(path: Path, sequence: int) -> bool:
    """Tell whether the process of a folder lives and does not see the change; remove what a dead one left."""
    try:
        with (path / _TOLD).open("rb") as file:
            told = file.read(8)
            if len(told) == 8 and int.from_bytes(told, "little") >= sequence:
                return False
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except FileNotFoundError:
        pass
    shutil.rmtree(path, ignore_errors=True)
    return False
