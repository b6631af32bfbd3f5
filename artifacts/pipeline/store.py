"""What the models made of texts (`TextStore`), known by the texts' digests.

WORK/encode/
    plan.json        the format, and what a text is encoded with
    run-PLAN-NAME/   some texts, or all: texts.npy (n, 16) uint8, their digests; dense.npy (n, H) float16; impacts in
                     CSR form: at.npy (n + 1,) int64, terms.npy (nnz,) int32, impacts.npy (nnz,) uint16; cut.npy (n,)

A process writes the texts that are missing to folders of its own, so that the machines of a Ray cluster share the work.
`join` makes one folder of all, with the bytes of a fresh one.
"""

import json
import shutil
from collections.abc import Iterator
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import BoolArray, Int64Array, UInt8Array
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.arrays import new_array
from lightretriever.artifacts.files.workdir import check_plan, read_json
from lightretriever.artifacts.pipeline.columns import DIGEST_BYTES, Digests, column, digest_of, first_rows, new_folder
from lightretriever.artifacts.pipeline.rows import ImpactRows, ModelRows, Rows

STORE_FORMAT: Final = 5

_BATCH: Final = 65_536
_AGAIN: Final = "Run `lightretriever build --from encode` with this recipe."


class TextStore:
    """Vectors and impacts of texts, found by digest, all made by one plan."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    def begin(cls, path: Path, plan: dict[str, Any]) -> Self:
        """Begin a job, or go on with one. `plan` names every setting that changes what a text is encoded to; its
        `dimension` is H, and `shard_size` how many documents a part is made of at a time.

        Raises ResumeError, naming each difference, when the directory was begun with another plan.
        """
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
        present: BoolArray = self._index.find(texts) >= 0
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
        rows = self._whole
        return rows.take(self._index.find(texts))

    def join(self, texts: UInt8Array, *, keep: bool = False) -> None:
        """Make one folder of what was made of a corpus' texts (N, 16), and remove all else, unless other texts are to
        be kept. Raises ResumeError as `check` does."""
        self.check(texts)
        self._join(self._all_texts(texts) if keep else texts[first_rows(texts)])

    def others(self, texts: UInt8Array) -> int:
        """How many texts are here besides these (N, 16)."""
        return len(self._all_texts(texts)) - len(first_rows(texts))

    def _all_texts(self, texts: UInt8Array) -> UInt8Array:
        """These texts and all others that are here, each once."""
        digests = np.concatenate([texts, *(column(source, "texts") for source in self._sources)])
        return digests[first_rows(digests)]

    @cached_property
    def _whole(self) -> ModelRows:
        """All texts in one folder, mapped. Parts are joined first."""
        if len(self._sources) != 1:
            self._join(self._all_texts(np.empty((0, DIGEST_BYTES), np.uint8)))
        names = ("dense", "at", "terms", "impacts", "cut")
        dense, at, terms, impacts, cut = (column(self._sources[0], name) for name in names)
        return ModelRows(dense, ImpactRows(Rows(at, terms), impacts), cut)

    def _join(self, texts: UInt8Array) -> None:
        """Write different texts (n, 16), which are all here, to one folder, and remove all else."""
        joined = self.path / f"{self._prefix}{digest_of(texts)}"
        if not joined.is_dir():
            with new_folder(joined) as new:
                self._write(texts, new)
        for other in self.path.iterdir():
            if other.name.startswith("run-") and other != joined:
                shutil.rmtree(other)
        self._forget()

    def _write(self, texts: UInt8Array, new: Path) -> None:
        lengths, cut = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
        for source, places, rows in self._parts(texts):
            lengths[places] = np.diff(column(source, "at"))[rows]
            cut[places] = column(source, "cut")[rows]
        at = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        for name, array in (("texts", texts), ("at", at), ("cut", cut)):
            np.save(new / f"{name}.npy", array)
        dense = new_array(new / "dense.npy", np.float16, (len(texts), self.plan["dimension"]))
        terms = new_array(new / "terms.npy", np.int32, (int(at[-1]),))
        impacts = new_array(new / "impacts.npy", np.uint16, (int(at[-1]),))
        target = Rows(at, terms)
        for source, places, rows in self._parts(texts):
            dense[places] = column(source, "dense")[rows]
            there, _ = Rows(column(source, "at"), terms).places(rows)
            here, _ = target.places(places)
            terms[here], impacts[here] = column(source, "terms")[there], column(source, "impacts")[there]

    def _parts(self, texts: UInt8Array) -> Iterator[tuple[Path, Int64Array, Int64Array]]:
        """Where texts (n, 16) are: a source, which of the texts it has, and their rows in it; some at a time."""
        rows = self._index.find(texts)
        order = np.argsort(rows, kind="stable")
        bounds = np.searchsorted(rows[order], self._ends)
        for number, source in enumerate(self._sources):
            for start in range(bounds[number], bounds[number + 1], _BATCH):
                places = order[start : min(start + _BATCH, bounds[number + 1])]
                yield source, places, rows[places] - self._ends[number]

    def _forget(self) -> None:
        for name in ("_sources", "_ends", "_index", "_whole"):
            vars(self).pop(name, None)

    @property
    def _prefix(self) -> str:
        """Return the prefix of the files of this plan; files of another plan have another."""
        return f"run-{blake2b(json.dumps(self.plan, sort_keys=True).encode(), digest_size=4).hexdigest()}-"

    @cached_property
    def _sources(self) -> list[Path]:
        return sorted(path for path in self.path.glob(f"{self._prefix}*") if not path.suffix)

    @cached_property
    def _ends(self) -> Int64Array:
        """Where the texts of each source begin among those of all, and where the last ones end."""
        return np.cumsum([0, *(len(column(source, "texts")) for source in self._sources)]).astype(np.int64)

    @cached_property
    def _index(self) -> Digests:
        texts = (column(source, "texts") for source in self._sources)
        return Digests(np.concatenate([np.empty((0, DIGEST_BYTES), np.uint8), *texts]))
