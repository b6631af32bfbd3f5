"""A checkpoint of a journal: the Lucene index of its changes on the disk, so that a start indexes only what came later.

It is a folder SEQUENCE.NAME.checkpoint beside the journal, numbered by its last change; the name stands for the bundle
and the journal. It is no state: without it, or where it is damaged, a start indexes all changes. Nothing is forced to
the disk therefore; Lucene compares the checksums of the files when it opens them.
"""

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["discard", "newest", "restore", "save"]

_log = logging.getLogger(__name__)
_SUFFIX: Final = ".checkpoint"


def newest(folder: Path, name: str) -> int:
    """Give the number of the last change in the newest checkpoint of this name beside a journal; 0 for none."""
    return max((int(path.name.partition(".")[0]) for path in folder.glob(f"*.{name}{_SUFFIX}")), default=0)


def save(folder: Path, name: str, sequence: int, scratch: Path, files: Sequence[Path]) -> None:
    """Write a checkpoint in place of those before it. `scratch` is a folder on the same disk that is not there yet, and
    `files` are those of the index. OSError."""
    try:
        scratch.mkdir()
        for file in files:
            os.link(file, scratch / file.name)
        before = list(folder.glob(f"*{_SUFFIX}"))
        scratch.rename(_path(folder, name, sequence))
        for path in before:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def restore(folder: Path, name: str, target: Path) -> int:
    """Link the files of the newest checkpoint of this name into a folder, and give its number; 0 for none."""
    sequence = newest(folder, name)
    try:
        if sequence:
            shutil.copytree(_path(folder, name, sequence), target, copy_function=os.link)
    except (OSError, shutil.Error):  # another process has written a newer one
        shutil.rmtree(target, ignore_errors=True)
        return 0
    return sequence


def discard(folder: Path, reason: str) -> None:
    """Remove the checkpoints beside a journal, and log why."""
    _log.warning("checkpoint removed, so the whole journal is replayed", extra={"file": str(folder), "reason": reason})
    for path in folder.glob(f"*{_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)


def _path(folder: Path, name: str, sequence: int) -> Path:
    return folder / f"{sequence:020d}.{name}{_SUFFIX}"
