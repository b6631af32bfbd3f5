"""Encoded corpora on disk: numbered shard files plus a plan that says what they were made from.

A work directory holds `plan.json` and `shard-00000.npz`, `shard-00001.npz`, … Each shard is written to a temporary
name and renamed, so a shard that exists is whole. A run that was killed starts again at the first missing shard.
"""

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from artifacts.errors import ResumeError

__all__ = ["EncodedShard", "ShardStore", "write_atomically"]


@dataclass(frozen=True)
class EncodedShard:
    """A run of encoded documents, in corpus order.

    `ids` n document ids; `dense` (n, H) float16, L2-normalised before rounding; `indptr` (n+1,) int64 with `terms`
    (nnz,) int32 token ids, ascending per document, and `impacts` (nnz,) uint16: the sparse vectors in CSR form.
    """

    ids: list[str]
    dense: npt.NDArray[np.float16]
    indptr: npt.NDArray[np.int64]
    terms: npt.NDArray[np.int32]
    impacts: npt.NDArray[np.uint16]


class ShardStore:
    """The shards of one encoding job in one directory."""

    def __init__(self, path: Path, plan: dict[str, Any]) -> None:
        """Open or begin a job. `plan` names every input and setting that changes the output.

        Raises ResumeError, naming each difference, when the directory was begun with another plan.
        """
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "plan.json"
        if file.is_file():
            _check_same(file, json.loads(file.read_text(encoding="utf-8")), plan)
        else:
            write_atomically(file, json.dumps(plan, indent=1, sort_keys=True).encode() + b"\n")
        for leftover in self.path.glob("*.partial"):
            leftover.unlink()

    def has(self, number: int) -> bool:
        """Whether shard `number` is there (and, being written atomically, whole)."""
        return self._file(number).is_file()

    def write(self, number: int, shard: EncodedShard) -> None:
        """Write one shard; the same content always gives the same bytes."""
        buffer = io.BytesIO()
        ids = np.frombuffer("\n".join(shard.ids).encode(), dtype=np.uint8)
        np.savez(buffer, ids=ids, dense=shard.dense, indptr=shard.indptr, terms=shard.terms, impacts=shard.impacts)
        write_atomically(self._file(number), buffer.getvalue())

    def read(self, number: int) -> EncodedShard:
        """Read one shard. Raises ResumeError when it is missing or damaged."""
        file = self._file(number)
        try:
            with np.load(file, allow_pickle=False) as arrays:
                ids = arrays["ids"].tobytes().decode().split("\n")
                return EncodedShard(ids, arrays["dense"], arrays["indptr"], arrays["terms"], arrays["impacts"])
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise ResumeError(
                f"{file}: the shard can't be read: {error}.", remedy="Delete it and run `encode` again."
            ) from error

    def __iter__(self) -> Iterator[EncodedShard]:
        """All shards in order. Raises ResumeError when the job isn't finished."""
        for number in range(self.count()):
            yield self.read(number)

    def finish(self, count: int) -> None:
        """Record that the job has `count` shards and all are written."""
        write_atomically(self.path / "done.json", json.dumps({"shards": count}).encode() + b"\n")

    def count(self) -> int:
        """The number of shards of a finished job. Raises ResumeError while it is unfinished."""
        file = self.path / "done.json"
        if not file.is_file():
            raise ResumeError(f"{self.path}: the corpus is not encoded to its end.", remedy="Run `encode` again.")
        return int(json.loads(file.read_text(encoding="utf-8"))["shards"])

    def _file(self, number: int) -> Path:
        return self.path / f"shard-{number:05d}.npz"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that `path` has either its old or its whole new content, whatever happens."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _check_same(file: Path, begun: dict[str, Any], plan: dict[str, Any]) -> None:
    keys = sorted(key for key in begun.keys() | plan.keys() if begun.get(key) != plan.get(key))
    if keys:
        differences = "; ".join(f"{key}: {begun.get(key)!r} there, {plan.get(key)!r} now" for key in keys)
        raise ResumeError(
            f"{file}: this work directory was begun with other inputs ({differences}).",
            remedy="Use the same inputs, another work directory, or delete this one.",
        )
