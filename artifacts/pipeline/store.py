"""What the models made of texts (`TextStore`), known by the texts' digests.

WORK/encode/
    plan.json         the format, and what a text is encoded with
    run-PLAN-NAME/    texts (n, 16) uint8, their digests; dense (n, H) float16; impacts in CSR form: at (n + 1,) int64,
                      terms (nnz,) int32, impacts (nnz,) uint16; cut (n,) bool
    texts-NAME        (N, 16) uint8, the digests of a corpus' texts, in its order
    corpus.json       the corpus that is encoded, and the name of its texts

A process appends the texts that no run has to a run of its own, so that several machines share the work. A text counts
once its digest is there, which is written last. `finish` makes one run of all, with the bytes of a fresh one.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any, BinaryIO, Final, NamedTuple, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import BoolArray, Int64Array, UInt8Array
from lightretriever.artifacts.errors import RecipeError, ResumeError
from lightretriever.artifacts.files.atomic_file import writing
from lightretriever.artifacts.files.workdir import check_plan, read_json, write_atomically
from lightretriever.artifacts.pipeline.columns import DIGEST_BYTES, Digests, digest_of, first_rows, mapped, new_folder
from lightretriever.artifacts.pipeline.rows import ModelRows, Rows

__all__ = ["STORE_FORMAT", "Part", "TextStore"]

STORE_FORMAT: Final = 2

_FACTS: Final = "corpus.json"
_BATCH: Final = 1024
_SYNC_S: Final = 60.0


class Part(NamedTuple):
    """Part `number` of `of` of a corpus' shards: from that one on, each `of`-th."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `I/N`. Raises RecipeError for another form, or a number outside of 1..N."""
        number, _, of = text.partition("/")
        if number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
            return cls(int(number), int(of))
        raise RecipeError(f"--part is {text!r}, expected I/N with I from 1 to N.", remedy="Write 1/4, 2/4, 3/4, 4/4.")

    def has(self, shards: Int64Array) -> BoolArray:
        """True if each shard, counted from 0, belongs to it."""
        own: BoolArray = shards % self.of == self.number - 1
        return own

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


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
        return read_json(self.path / "plan.json")

    @property
    def documents(self) -> Any:
        """The facts of the corpus that `finish` was given. Raises ResumeError while none is encoded to its end."""
        return self._corpus["documents"]

    @property
    def skipped(self) -> int:
        """How many bad lines of the corpus were left out. Raises ResumeError as `documents` does."""
        return int(self._corpus["skipped"])

    @cached_property
    def texts(self) -> UInt8Array:
        """The digests (N, 16) of the corpus' texts, in its order. Raises ResumeError as `documents` does."""
        return mapped(self.path / self._corpus["texts"], "u1", DIGEST_BYTES)

    def find(self, texts: UInt8Array) -> Int64Array:
        """Where texts with these digests (n, 16) are among all that are here, (n,); -1 for one that is not."""
        return self._places.find(texts)

    def rows(self, places: Int64Array) -> ModelRows:
        """Copy the rows of the texts at these places (n,)."""
        if len(self._runs) == 1:
            return self._runs[0][1].take(places)
        ends = np.cumsum([len(rows) for _, rows in self._runs])
        run = np.searchsorted(ends, places, side="right")
        parts = [ModelRows.of(np.zeros((0, self.plan["dimension"]), np.float16), [], [])]
        for number, (_, rows) in enumerate(self._runs):
            parts.append(rows.take(places[run == number] - (ends[number] - len(rows))))
        return ModelRows.joined(parts).take(np.argsort(np.argsort(run, kind="stable"), kind="stable"))

    def counts(self, places: Int64Array) -> tuple[int, int]:
        """How many terms the texts at these places (n,) have together, and how many texts are cut."""
        lengths = np.concatenate([np.empty(0, np.int64), *(np.diff(rows.terms.at) for _, rows in self._runs)])
        cut = np.concatenate([np.empty(0, np.bool_), *(rows.cut for _, rows in self._runs)])
        return int(lengths[places].sum()), int(cut[places].sum())

    def places(self) -> Int64Array:
        """Where the corpus' texts are, (N,), for `rows`. Raises ResumeError when some are missing, and names their
        parts."""
        if missing := self.missing_shards():
            parts = self.missing_parts()
            options = [f"--part {part}" for part in parts] if parts[0].of > 1 else ["--from encode"]
            commands = " and ".join(f"`lightretriever build {option}`" for option in options)
            shards = -(-len(self.texts) // self.plan["shard_size"])
            raise ResumeError(
                f"{self.path}: {len(missing)} of {shards} shards are not there.",
                remedy=f"Run {commands} with this recipe.",
            )
        return self._found

    def whole(self) -> ModelRows:
        """Map the rows of the corpus' texts where they lie in one run, in this order. Raises ResumeError as
        `places` does."""
        places = self.places()
        if len(self._runs) == 1 and np.array_equal(places, np.arange(len(self._runs[0][1]))):
            return self._runs[0][1]
        return self.rows(places)

    def batches(self) -> Iterator[ModelRows]:
        """Return the rows of the corpus' texts, a shard at a time. Raises ResumeError as `places` does."""
        places, size = self.places(), self.plan["shard_size"]
        for start in range(0, len(places), size):
            yield self.rows(places[start : start + size])

    def missing_shards(self) -> list[int]:
        """The shards of the corpus of which a text is missing, from 0 on. Raises ResumeError as `documents` does."""
        rows = np.flatnonzero(self._found < 0)
        return sorted(set((rows // self.plan["shard_size"]).tolist()))

    def missing_parts(self) -> list[Part]:
        """The parts that lack shards, of as many as the corpus was encoded in; 1/1 for one that was encoded at once.
        Raises ResumeError as `documents` does."""
        of = self._corpus["parts"]
        return [Part(number + 1, of) for number in sorted({shard % of for shard in self.missing_shards()})]

    @contextmanager
    def adding(self) -> Iterator[Callable[[UInt8Array, ModelRows], None]]:
        """A function that adds n >= 1 texts, given by their digests (n, 16), and raises DiskError. They stay, whatever
        ends the block."""
        run = _Run(self.path / f"{self._prefix}{uuid4().hex}")
        try:
            yield run.add
        finally:
            run.close()
            self._forget()

    def finish(
        self, texts: UInt8Array, documents: Any, *, skipped: int = 0, part: Part | None = None, keep: bool = False
    ) -> None:
        """Record of which `texts` (N, 16) the corpus `documents` is made, and how many bad lines were left out. What
        was made of them becomes one run, and all else is removed, unless other processes make a `part`, or other texts
        are to be kept."""
        name = f"texts-{digest_of(texts)}"
        write_atomically(self.path / name, texts.tobytes())
        made = {"documents": documents, "texts": name, "skipped": skipped, "parts": part.of if part else 1}
        write_atomically(self.path / _FACTS, json.dumps(made, indent=1).encode() + b"\n")
        for former in ("texts", "_found"):
            vars(self).pop(former, None)
        if part is None and not keep:
            self.places()  # while a text is missing, nothing is removed
            self._tidy(texts[first_rows(texts)], name)

    def others(self, texts: UInt8Array) -> int:
        """How many texts are here besides these (N, 16)."""
        known = np.concatenate([texts, *(run for run, _ in self._runs)])
        return len(first_rows(known)) - len(first_rows(texts))

    def _tidy(self, texts: UInt8Array, name: str) -> None:
        kept = self.path / f"{self._prefix}{digest_of(texts)}"
        if kept.is_dir() and not np.array_equal(_run(kept, self.plan["dimension"])[0], texts):  # it is damaged
            kept.rename(self.path / f"{self._prefix}{uuid4().hex}")
            self._forget()
        runs = self._folders()
        if not kept.is_dir() and len(runs) == 1 and np.array_equal(self._runs[0][0], texts):
            runs[0].rename(kept)
        elif not kept.is_dir() and len(texts):
            with new_folder(kept) as new, closing(_Run(new)) as run:
                for start in range(0, len(texts), _BATCH):
                    part = texts[start : start + _BATCH]
                    run.add(part, self.rows(self.find(part)))
        for other in self.path.iterdir():
            if other.is_dir() and other != kept:
                shutil.rmtree(other)
            elif other.name.startswith("texts-") and other.name != name:
                other.unlink()
        self._forget()

    def _forget(self) -> None:
        for name in ("_runs", "_places", "_found"):
            vars(self).pop(name, None)

    def _folders(self) -> list[Path]:
        return sorted(folder for folder in self.path.glob(f"{self._prefix}*") if not folder.suffix)

    @property
    def _prefix(self) -> str:
        """Runs that were made by another plan, and copied here, have other names."""
        return f"run-{blake2b(json.dumps(self.plan, sort_keys=True).encode(), digest_size=4).hexdigest()}-"

    @cached_property
    def _runs(self) -> list[tuple[UInt8Array, ModelRows]]:
        return [_run(folder, self.plan["dimension"]) for folder in self._folders()]

    @cached_property
    def _found(self) -> Int64Array:
        """Where the corpus' texts are, (N,); -1 for one that is not."""
        return self.find(self.texts)

    @cached_property
    def _places(self) -> "Digests":
        return Digests(np.concatenate([np.empty((0, DIGEST_BYTES), np.uint8), *(texts for texts, _ in self._runs)]))

    @property
    def _corpus(self) -> dict[str, Any]:
        file = self.path / _FACTS
        if not file.is_file():
            raise ResumeError(
                f"{self.path}: the corpus is not encoded to its end.",
                remedy="Run `lightretriever build --from encode` with this recipe.",
            )
        return read_json(file)


class _Run:
    """Appends to the columns of a new folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files, self._end, self._synced = folder, dict[str, BinaryIO](), 0, monotonic()

    def add(self, texts: UInt8Array, rows: ModelRows) -> None:
        """Add n >= 1 texts."""
        at = rows.terms.at[1:] + self._end
        if not self._files:
            with writing(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
            at = np.concatenate([[0], at])
        columns: list[npt.NDArray[Any]] = [rows.dense, at, rows.terms.values, rows.impacts, rows.cut, texts]
        for (name, dtype), values in zip(_MODEL.items(), columns, strict=True):
            with writing(self._folder / name):
                if name not in self._files:
                    self._files[name] = (self._folder / name).open("wb", buffering=0)
                left = memoryview(values.astype(dtype, copy=False).tobytes())
                while left:
                    left = left[self._files[name].write(left) :]
        self._end = int(at[-1])
        if monotonic() - self._synced >= _SYNC_S:
            self._sync()

    def close(self) -> None:
        """Close the files."""
        self._sync()
        for file in self._files.values():
            file.close()

    def _sync(self) -> None:
        with writing(self._folder):
            for file in self._files.values():
                os.fsync(file.fileno())
        self._synced = monotonic()


_MODEL: Final = {"dense": "<f2", "at": "<i8", "terms": "<i4", "impacts": "<u2", "cut": "?", "texts": "u1"}


def _run(folder: Path, dimension: int) -> tuple[UInt8Array, ModelRows]:
    """The texts of a run that are whole, and what was made of them."""
    size = (folder / "texts").stat().st_size if (folder / "texts").is_file() else 0
    count = size // DIGEST_BYTES
    at = mapped(folder / "at", "<i8", count=count + 1) if count else np.zeros(1, np.int64)
    terms, impacts = (mapped(folder / name, _MODEL[name], count=int(at[-1])) for name in ("terms", "impacts"))
    dense, cut = mapped(folder / "dense", "<f2", dimension, count), mapped(folder / "cut", "?", count=count)
    return mapped(folder / "texts", "u1", DIGEST_BYTES, count), ModelRows(dense, Rows(at, terms), impacts, cut)
