"""A checkpoint of a journal: the indexes of its changes on the disk, so that a start replays only what came later.

A folder SEQUENCE.checkpoint beside the journal, named by the number of the last change in it, has the files of the
indexes, and `facts`: a CRC-32, and JSON with the checksums of the files. It is no state: without it, or where it is
damaged or of another bundle, a start replays the whole journal. Nothing is forced to the disk therefore.
"""

import logging
import os
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import orjson
from lightretriever.artifacts.dense.later import LaterIndex
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy

__all__ = ["LUCENE", "Checkpoint", "discard", "newest", "restored", "save"]

LUCENE: Final = "lucene"
"""The folder of the Lucene files in a checkpoint."""

_log = logging.getLogger(__name__)
_SUFFIX: Final = ".checkpoint"
_FACTS, _ALIVE = "facts", "alive.npy"
_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Checkpoint:
    """Facts of an overlay at the change `sequence`: the bundle, the journal, and the last change of it that the
    bundle has; whether each document (N + n,) lives; and `changed` as in `Overlay`."""

    bundle: str
    journal: str
    position: int
    sequence: int
    alive: npt.NDArray[np.bool_]
    changed: dict[str, tuple[int | None, int]]


def newest(folder: Path) -> int:
    """Give the number of the last change in the newest checkpoint beside a journal; 0 for none."""
    return max((int(path.stem) for path in folder.glob(f"*{_SUFFIX}")), default=0)


def save(folder: Path, scratch: Path, checkpoint: Checkpoint, lucene: Sequence[Path], dense: LaterIndex | None) -> None:
    """Write a checkpoint in place of those before it. `scratch` is a folder on the same disk that is not there yet, and
    `lucene` the files of the Lucene index. OSError, RuntimeError."""
    try:
        (scratch / LUCENE).mkdir(parents=True)
        for file in lucene:
            os.link(file, scratch / LUCENE / file.name)
        if dense is not None:
            dense.save(scratch)
        np.save(scratch / _ALIVE, checkpoint.alive)
        facts = vars(checkpoint) | {"alive": None, "checksums": _checksums(scratch)}
        text = orjson.dumps(facts)
        (scratch / _FACTS).write_bytes(zlib.crc32(text).to_bytes(4) + text)
        before = list(folder.glob(f"*{_SUFFIX}"))
        scratch.rename(folder / f"{checkpoint.sequence:020d}{_SUFFIX}")
        for path in before:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def restored(folder: Path, target: Path, bundle: str, journal: str, position: int) -> Checkpoint | None:
    """Read the newest checkpoint beside a journal, and link its files into the folder `target`. None where there is
    none of this bundle, journal and position; a damaged one is removed, and the log says so."""
    path = folder / f"{newest(folder):020d}{_SUFFIX}"
    if not path.exists():
        return None
    try:
        shutil.copytree(path, target, copy_function=os.link)
        content = (target / _FACTS).read_bytes()
        if zlib.crc32(content[4:]).to_bytes(4) != content[:4]:
            raise ValueError(f"{_FACTS} has another checksum")
        facts = orjson.loads(content[4:])
        checksums = facts.pop("checksums")
        checkpoint = Checkpoint(**facts | {"alive": load_npy(target / _ALIVE, mapped=False)})
        if (checkpoint.bundle, checkpoint.journal, checkpoint.position) == (bundle, journal, position):
            if _checksums(target) == checksums:
                return checkpoint
            raise ValueError("a file has another checksum")
    except (*UNREADABLE, KeyError, TypeError) as error:
        discard(folder, str(error))
    shutil.rmtree(target, ignore_errors=True)
    return None


def discard(folder: Path, reason: str) -> None:
    """Remove the checkpoints beside a journal, and log why."""
    _log.warning("checkpoint removed, so the whole journal is replayed", extra={"file": str(folder), "reason": reason})
    for path in folder.glob(f"*{_SUFFIX}"):
        shutil.rmtree(path, ignore_errors=True)


def _checksums(folder: Path) -> dict[str, int]:
    """Give the CRC-32 of every file in a folder but the facts, by its path there."""
    found: dict[str, int] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != _FACTS:
            checksum = 0
            with path.open("rb") as file:
                while part := file.read(_READ_BYTES):
                    checksum = zlib.crc32(part, checksum)
            found[str(path.relative_to(folder))] = checksum
    return found
