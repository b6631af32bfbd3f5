"""Encoded corpora on disk: numbered shard files plus a plan that says what they were made from.

A work directory holds `plan.json` and `shard-00000.npz`, `shard-00001.npz`, … Each shard is written to a temporary
name and renamed, so a shard that exists is whole. A run that was killed starts again at the first missing shard.
"""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.arrays import UNREADABLE
from lightretriever.artifacts.files.workdir import check_plan, read_json, write_atomically

__all__ = ["EncodedShard", "ShardStore", "ShardTotals"]


@dataclass(frozen=True)
class EncodedShard:
    """A run of encoded documents, in corpus order.

    `ids` n document ids; `dense` (n, H) float16, L2-normalised before rounding; `indptr` (n+1,) int64 with `terms`
    (nnz,) int32 token ids, ascending per document, and `impacts` (nnz,) uint16: the sparse vectors in CSR form. `cut`
    of the documents were longer than the model reads.
    """

    ids: list[str]
    dense: npt.NDArray[np.float16]
    indptr: npt.NDArray[np.int64]
    terms: npt.NDArray[np.int32]
    impacts: npt.NDArray[np.uint16]
    cut: int = 0


class ShardTotals(NamedTuple):
    """Counts of a finished job: documents, sparse terms, documents cut, and bad lines left out."""

    documents: int
    terms: int
    cut: int
    skipped: int


class ShardStore:
    """The shards of one encoding job in one directory."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    def begin(cls, path: Path, plan: dict[str, Any]) -> "ShardStore":
        """Begin a job, or go on with one. `plan` names every input and setting that changes the output.

        Raises ResumeError, naming each difference, when the directory was begun with another plan.
        """
        check_plan(path / "plan.json", plan)
        for leftover in path.glob("*.partial"):
            leftover.unlink()
        return cls(path)

    @property
    def plan(self) -> dict[str, Any]:
        """What the job was begun with. Raises ResumeError when it never was."""
        return read_json(self.path / "plan.json")

    def has(self, number: int) -> bool:
        """Whether shard `number` is there (and, being written atomically, whole)."""
        return self._file(number).is_file()

    def write(self, number: int, shard: EncodedShard) -> None:
        """Write one shard; the same content always gives the same bytes."""
        buffer = io.BytesIO()
        ids = np.frombuffer("\n".join(shard.ids).encode(), dtype=np.uint8)
        np.savez(
            buffer,
            ids=ids,
            dense=shard.dense,
            indptr=shard.indptr,
            terms=shard.terms,
            impacts=shard.impacts,
            cut=np.int64(shard.cut),
        )
        write_atomically(self._file(number), buffer.getvalue())

    def read(self, number: int) -> EncodedShard:
        """Read one shard. Raises ResumeError when it is missing or damaged."""
        file = self._file(number)
        try:
            with np.load(file, allow_pickle=False) as arrays:
                ids = arrays["ids"].tobytes().decode().split("\n")
                vectors = (arrays["dense"], arrays["indptr"], arrays["terms"], arrays["impacts"])
                return EncodedShard(ids, *vectors, cut=int(arrays["cut"]))
        except (*UNREADABLE, KeyError, BadZipFile) as error:
            raise _unreadable(file, error) from error

    def __iter__(self) -> Iterator[EncodedShard]:
        """All shards in order. Raises ResumeError when the job isn't finished."""
        for number in range(self.count()):
            yield self.read(number)

    def finish(self, count: int, *, skipped: int = 0) -> None:
        """Record that the job has `count` shards and all are written, and how many bad lines were left out."""
        write_atomically(self.path / "done.json", json.dumps({"shards": count, "skipped": skipped}).encode() + b"\n")

    def count(self) -> int:
        """The number of shards of a finished job. Raises ResumeError while it is unfinished."""
        return int(self._done()["shards"])

    def _done(self) -> dict[str, Any]:
        file = self.path / "done.json"
        if not file.is_file():
            raise ResumeError(f"{self.path}: the corpus is not encoded to its end.", remedy="Run `encode` again.")
        return read_json(file)

    def totals(self) -> ShardTotals:
        """Count a finished job, from the row pointers of its shards alone. ResumeError."""
        documents = terms = cut = 0
        for number in range(self.count()):
            file = self._file(number)
            try:
                with np.load(file, allow_pickle=False) as arrays:
                    indptr, shorter = arrays["indptr"], int(arrays["cut"])
            except (*UNREADABLE, KeyError, BadZipFile) as error:
                raise _unreadable(file, error) from error
            documents, terms, cut = documents + len(indptr) - 1, terms + int(indptr[-1]), cut + shorter
        return ShardTotals(documents, terms, cut, int(self._done()["skipped"]))

    def _file(self, number: int) -> Path:
        return self.path / f"shard-{number:05d}.npz"


def _unreadable(file: Path, error: Exception) -> ResumeError:
    return ResumeError(f"{file}: the shard can't be read: {error}.", remedy="Delete it and run `encode` again.")
