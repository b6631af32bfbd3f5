"""What the models made of texts (`TextStore`), known by the texts' digests.

WORK/encode/
    plan.json        the format, and what a text is encoded with
    run-PLAN-NAME/   some texts, or all: texts.npy (n, 16) uint8, their digests; dense.npy (n, H) float16; impacts in
                     CSR form: at.npy (n + 1,) int64, terms.npy (nnz,) int32, impacts.npy (nnz,) uint16; cut.npy (n,)

A process writes the texts that are missing to folders of its own, so that the machines of a Ray cluster share the work.
`join` makes one folder of all, with the bytes of a fresh one.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import BoolArray, Int64Array, UInt8Array
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy, new_array
from lightretriever.artifacts.files.atomic import writing
from lightretriever.artifacts.files.workdir import check_plan, read_json
from lightretriever.artifacts.pipeline.rows import ImpactRows, ModelRows, Rows

STORE_FORMAT: Final = 5
DIGEST_BYTES: Final = 16

_BATCH: Final = 65_536
_AGAIN: Final = "Run `lightretriever build --from encode` with this recipe."


def text_digest(text: str) -> bytes:
    """The digest that identifies a text: 16 bytes."""
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def text_digests(texts: Iterable[str]) -> UInt8Array:
    """The digests of texts, (n, 16)."""
    return np.frombuffer(b"".join(map(text_digest, texts)), np.uint8).reshape(-1, DIGEST_BYTES)


def first_rows(digests: UInt8Array) -> Int64Array:
    """The places (m,), ascending, where each of the different digests (n, 16) comes first."""
    return np.sort(np.unique(_void(digests), return_index=True)[1])


def _void(digests: UInt8Array) -> npt.NDArray[np.void]:
    return np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}")[:, 0]


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder that takes the name `target` when the block ends well, unless another process was faster."""
    new = target.with_name(f"{target.name}.{uuid4().hex}.partial")
    with writing(target):
        new.mkdir(parents=True)
        try:
            yield new
            for file in new.iterdir():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
            try:
                new.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
        finally:
            shutil.rmtree(new, ignore_errors=True)


def column(folder: Path, name: str) -> npt.NDArray[Any]:
    """A column of numbers, NAME.npy in a folder, mapped. Raises ResumeError where it is missing or damaged."""
    try:
        return load_npy(folder / f"{name}.npy")
    except UNREADABLE as error:
        raise ResumeError(
            f"{folder}: {name} can't be read: {error}.", remedy=f"Delete {folder}, and run the same command again."
        ) from error


class TextStore:
    """Vectors and impacts of texts, found by digest, all made by one plan."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    def begin(cls, path: Path, plan: dict[str, Any]) -> Self:
        """Begin a job, or go on with one. `plan` names every setting that changes what a text is encoded to, such as
        the `dimension` H. Raises ResumeError, naming each difference, when the directory was begun with another one."""
        plan = {"format": STORE_FORMAT, **plan}
        check_plan(path / "plan.json", plan)
        store = cls(path)
        store.plan = plan  # that of the file may be another's by now, who began at the same time
        return store

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The settings that texts are encoded with. Raises ResumeError when no job was begun."""
        return read_json(self.path / "plan.json", stage="encode")

    def has(self, texts: UInt8Array) -> BoolArray:
        """True if each text with these digests (n, 16) is here."""
        present: BoolArray = self._find(texts) >= 0
        return present

    def add(self, texts: UInt8Array, rows: ModelRows) -> None:
        """Add texts, given by their digests (n, 16). Raises DiskError."""
        columns: dict[str, npt.NDArray[Any]] = {"texts": texts, "dense": rows.dense, "cut": rows.cut}
        columns |= {"at": rows.sparse.terms.at, "terms": rows.sparse.terms.values, "impacts": rows.sparse.impacts}
        with new_folder(self.path / f"{self._prefix}{uuid4().hex}") as new:
            for name, array in columns.items():
                np.save(new / f"{name}.npy", array)
        self._forget()

    def counts(self, texts: UInt8Array) -> tuple[int, int]:
        """How many terms these texts (n, 16) have together, and how many of them are cut."""
        terms, cut = 0, 0
        for source, _, rows in self._parts(texts):
            terms += int(np.diff(column(source, "at"))[rows].sum())
            cut += int(column(source, "cut")[rows].sum())
        return terms, cut

    def check(self, texts: UInt8Array) -> None:
        """Raise ResumeError where some of these texts (n, 16) are missing."""
        if missing := int((~self.has(texts)).sum()):
            raise ResumeError(f"{self.path}: {missing:,} of {len(texts):,} documents are not there.", remedy=_AGAIN)

    def rows(self, texts: UInt8Array) -> ModelRows:
        """Copy the rows of texts (n, 16). Raises ResumeError as `check` does."""
        self.check(texts)
        return self._copied(texts, lambda _, dtype, shape: np.zeros(shape, dtype))

    def join(self, texts: UInt8Array, *, keep: bool = False) -> None:
        """Make one folder of what was made of a corpus' texts (N, 16), and remove all else, unless other texts are to
        be kept. Raises ResumeError as `check` does."""
        self.check(texts)
        texts = self._all_texts(texts) if keep else texts[first_rows(texts)]
        joined = self.path / f"{self._prefix}{blake2b(texts.tobytes(), digest_size=DIGEST_BYTES).hexdigest()}"
        if not joined.is_dir():
            with new_folder(joined) as new:
                np.save(new / "texts.npy", texts)
                self._copied(texts, lambda name, dtype, shape: new_array(new / f"{name}.npy", dtype, shape))
        for other in self.path.iterdir():
            if other.name.startswith("run-") and other != joined:
                shutil.rmtree(other)
        self._forget()

    def others(self, texts: UInt8Array) -> int:
        """How many texts are here besides these (N, 16)."""
        return len(self._all_texts(texts)) - len(first_rows(texts))

    def _all_texts(self, texts: UInt8Array) -> UInt8Array:
        """These texts and all others that are here, each once."""
        digests = np.concatenate([texts, *(column(source, "texts") for source in self._sources)])
        return digests[first_rows(digests)]

    def _copied(
        self, texts: UInt8Array, new: Callable[[str, npt.DTypeLike, tuple[int, ...]], npt.NDArray[Any]]
    ) -> ModelRows:
        """Copy the rows of texts (n, 16), which are all here, to arrays of zeros by `new` (name, type, shape)."""
        dense = new("dense", np.float16, (len(texts), self.plan["dimension"]))
        cut, at = new("cut", np.bool_, (len(texts),)), new("at", np.int64, (len(texts) + 1,))
        for source, places, rows in self._parts(texts):
            dense[places], cut[places] = column(source, "dense")[rows], column(source, "cut")[rows]
            at[places + 1] = np.diff(column(source, "at"))[rows]
        np.cumsum(at, out=at)
        count = int(at[-1])
        sparse = ImpactRows(Rows(at, new("terms", np.int32, (count,))), new("impacts", np.uint16, (count,)))
        for source, places, rows in self._parts(texts):
            found = Rows(column(source, "at"), column(source, "terms"))
            here, there = sparse.terms.places(places)[0], found.places(rows)[0]
            sparse.terms.values[here], sparse.impacts[here] = found.values[there], column(source, "impacts")[there]
        return ModelRows(dense, sparse, cut)

    def _parts(self, texts: UInt8Array) -> Iterator[tuple[Path, Int64Array, Int64Array]]:
        """Where texts (n, 16) are: a source, which of the texts it has, and their rows in it; some at a time."""
        rows = self._find(texts)
        order = np.argsort(rows, kind="stable")
        ends = np.cumsum([0, *(len(column(source, "texts")) for source in self._sources)])
        bounds = np.searchsorted(rows[order], ends)
        for number, source in enumerate(self._sources):
            for start in range(bounds[number], bounds[number + 1], _BATCH):
                places = order[start : min(start + _BATCH, bounds[number + 1])]
                yield source, places, rows[places] - ends[number]

    def _forget(self) -> None:
        for name in ("_sources", "_sorted"):
            vars(self).pop(name, None)

    @property
    def _prefix(self) -> str:
        """Return the prefix of the files of this plan; files of another plan have another."""
        return f"run-{blake2b(json.dumps(self.plan, sort_keys=True).encode(), digest_size=4).hexdigest()}-"

    @cached_property
    def _sources(self) -> list[Path]:
        return sorted(path for path in self.path.glob(f"{self._prefix}*") if not path.suffix)

    def _find(self, texts: UInt8Array) -> Int64Array:
        """The places (n,) of texts (n, 16) among those of all sources, the first of equal ones; -1 for others."""
        wanted, (order, digests) = _void(texts), self._sorted
        if not len(digests):
            return np.full(len(texts), -1, np.int64)
        index = np.minimum(np.searchsorted(digests, wanted), len(digests) - 1)
        return np.where(digests[index] == wanted, order[index], -1)

    @cached_property
    def _sorted(self) -> tuple[Int64Array, npt.NDArray[np.void]]:
        """The order of all digests that are here, and the digests in this order."""
        texts = (column(source, "texts") for source in self._sources)
        digests = _void(np.concatenate([np.empty((0, DIGEST_BYTES), np.uint8), *texts]))
        order = np.argsort(digests, kind="stable")
        return order, digests[order]
