"""How far each process that follows a journal has made it searchable."""

import fcntl
import os
import tempfile
from pathlib import Path
from time import perf_counter, sleep
from typing import Final

from lightretriever.artifacts.files.atomic_file import writing

__all__ = ["Follower"]

_SUFFIX: Final = ".follower"
_POLL_S: Final = 0.01


class Follower:
    """One that follows the journal of a folder: a file there says how far, and is locked as long as its process
    lives."""

    def __init__(self, folder: Path) -> None:
        """Raises DiskError."""
        self._folder = folder
        with writing(folder):
            self._file, name = tempfile.mkstemp(_SUFFIX, "", folder)
            self._path = Path(name)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self.tell(0)

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
        """Follow no more. Idempotent."""
        if self._path.exists():
            self._path.unlink()
            os.close(self._file)


def _behind(path: Path, sequence: int) -> bool:
    """Tell whether the process of a file lives and does not see the change; remove what a dead one left."""
    try:
        with path.open("rb") as file:
            told = file.read(8)
            if len(told) == 8 and int.from_bytes(told, "little") >= sequence:
                return False
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            path.unlink(missing_ok=True)
    except FileNotFoundError:
        pass
    return False
