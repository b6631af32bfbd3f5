"""Encoded texts on disk: shards that are named by their content, and a list of those that a corpus is made of.

A directory holds `plan.json`, what the shards were made with; `shard-MADE-CONTENT.npz`, MADE being a digest of the plan
and CONTENT one of ids, texts, and vectors that are given with them; and `shards.json`, the names in the corpus' order.
A shard that exists is whole. One that is missing is made of the rows of texts that any other shard has, and only the
rest is encoded. So a stopped run goes on at the first missing shard, and another corpus costs its new texts.
"""

import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts.errors import RecipeError, ResumeError
from lightretriever.artifacts.files.arrays import UNREADABLE
from lightretriever.artifacts.files.workdir import check_plan, read_json, write_atomically

__all__ = ["EncodedRow", "EncodedShard", "Part", "ShardStore", "ShardTotals", "text_digest"]

_DIGEST_BYTES = 16


class EncodedRow(NamedTuple):
    """An encoded text: `dense` (H,) float16, `terms` (m,) int32, ascending, with `impacts` (m,) uint16, and whether it
    is `cut`, being longer than the model reads."""

    dense: npt.NDArray[np.float16]
    terms: npt.NDArray[np.int32]
    impacts: npt.NDArray[np.uint16]
    cut: bool


@dataclass(frozen=True)
class EncodedShard:
    """A run of encoded texts, in corpus order.

    `ids` n document ids; `texts` (n, 16) uint8, the digests of their texts; `dense` (n, H) float16, L2-normalised
    before rounding; `indptr` (n+1,) int64 with `terms` (nnz,) int32 token ids, ascending per document, and `impacts`
    (nnz,) uint16: the sparse vectors in CSR form; `cut` (n,) bool.
    """

    ids: list[str]
    texts: npt.NDArray[np.uint8]
    dense: npt.NDArray[np.float16]
    indptr: npt.NDArray[np.int64]
    terms: npt.NDArray[np.int32]
    impacts: npt.NDArray[np.uint16]
    cut: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, ids: list[str], texts: Sequence[bytes], rows: Sequence[EncodedRow]) -> Self:
        """A shard of n >= 1 texts, given by their digests."""
        return cls(
            ids,
            np.frombuffer(b"".join(texts), dtype=np.uint8).reshape(len(rows), _DIGEST_BYTES),
            np.stack([row.dense for row in rows]),
            np.cumsum([0, *(len(row.terms) for row in rows)]).astype(np.int64),
            np.concatenate([row.terms for row in rows]),
            np.concatenate([row.impacts for row in rows]),
            np.array([row.cut for row in rows]),
        )

    def row(self, number: int) -> EncodedRow:
        """A text of it, copied, so that it doesn't keep the shard in memory."""
        part = slice(self.indptr[number], self.indptr[number + 1])
        terms, impacts = self.terms[part].copy(), self.impacts[part].copy()
        return EncodedRow(self.dense[number].copy(), terms, impacts, bool(self.cut[number]))


class Part(NamedTuple):
    """Part `number` of `of` of the shards: from that one on, each `of`-th."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `I/N`. Raises RecipeError for another form, or a number outside of 1..N."""
        number, _, of = text.partition("/")
        if number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
            return cls(int(number), int(of))
        raise RecipeError(f"--part is {text!r}, expected I/N with I from 1 to N.", remedy="Write 1/4, 2/4, 3/4, 4/4.")

    def has(self, place: int) -> bool:
        """Whether the shard at a place, from 0 on, belongs to it."""
        return place % self.of == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"


class ShardTotals(NamedTuple):
    """Counts of a corpus: shards, documents, sparse terms, and documents cut."""

    shards: int
    documents: int
    terms: int
    cut: int


class ShardStore:
    """The shards of one directory, all made by one plan."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @classmethod
    def begin(cls, path: Path, plan: dict[str, Any]) -> Self:
        """Begin a job, or go on with one. `plan` names every setting that changes what a text is encoded to.

        Raises ResumeError, naming each difference, when the directory was begun with another plan.
        """
        check_plan(path / "plan.json", plan)
        store = cls(path)
        store.plan = plan  # that of the file may be another's by now, who began at the same time
        return store

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The settings that the shards are made with. Raises ResumeError when no job was begun."""
        return read_json(self.path / "plan.json")

    @property
    def documents(self) -> Any:
        """The facts of the corpus that `finish` was given. Raises ResumeError while no corpus is encoded to its end."""
        return self._list()["documents"]

    @property
    def skipped(self) -> int:
        """How many bad lines of the corpus were left out. Raises ResumeError as `documents` does."""
        return int(self._list()["skipped"])

    def name(self, ids: Sequence[str], texts: Sequence[bytes], given: npt.NDArray[np.float16] | None = None) -> str:
        """The name of the shard of these ids and digests of texts, and of vectors that are `given` with them."""
        content = hashlib.blake2b(json.dumps(list(ids)).encode(), digest_size=_DIGEST_BYTES)
        content.update(b"".join(texts))
        content.update(b"" if given is None else given.tobytes())
        return f"{self._prefix}{content.hexdigest()}"

    def has(self, name: str) -> bool:
        """Whether a shard is there (and, being written atomically, whole)."""
        return self._file(name).is_file()

    def write(self, name: str, shard: EncodedShard) -> None:
        """Write one shard; the same content always gives the same bytes."""
        buffer = io.BytesIO()
        arrays = {key: value for key, value in vars(shard).items() if key != "ids"}
        np.savez(buffer, ids=np.frombuffer("\n".join(shard.ids).encode(), dtype=np.uint8), **arrays)
        write_atomically(self._file(name), buffer.getvalue())

    def read(self, name: str) -> EncodedShard:
        """Read one shard. Raises ResumeError when it is missing or damaged."""
        ids, *arrays = self._arrays(name, "ids", "texts", "dense", "indptr", "terms", "impacts", "cut")
        return EncodedShard(ids.tobytes().decode().split("\n"), *arrays)

    def rows(self, texts: Iterable[bytes]) -> dict[bytes, EncodedRow]:
        """Read the rows of texts, given by their digests, that some shard had at the first call. ResumeError."""
        wanted = defaultdict[str, dict[bytes, int]](dict)
        for text in texts:
            if (place := self._places.get(text)) is not None:
                wanted[place[0]][text] = place[1]
        found = dict[bytes, EncodedRow]()
        for name, places in wanted.items():
            shard = self.read(name)
            found |= {text: shard.row(row) for text, row in places.items()}
        return found

    def finish(self, names: Sequence[str], documents: Any, *, skipped: int = 0, part: Part | None = None) -> None:
        """Record which shards the corpus `documents` is made of, and how many bad lines were left out. Shards of
        earlier ones are removed, unless other processes make a `part` of them."""
        made = {"documents": documents, "shards": list(names), "skipped": skipped, "parts": part.of if part else 1}
        write_atomically(self.path / "shards.json", json.dumps(made, indent=1).encode() + b"\n")
        for name in self._others(names) if part is None else ():
            self._file(name).unlink()

    def left(self, names: Sequence[str], texts: set[bytes]) -> int:
        """How many texts the shards besides `names` have that are not among `texts`."""
        return len({text for name in self._others(names) for text in self._texts(name)} - texts)

    def __iter__(self) -> Iterator[EncodedShard]:
        """All shards in order. Raises ResumeError when some are missing."""
        for name in self.names():
            yield self.read(name)

    def names(self) -> list[str]:
        """The names of all shards in order. Raises ResumeError when some are missing, and names their parts."""
        names: list[str] = self._list()["shards"]
        if parts := self.missing_parts():
            missing = sum(not self.has(name) for name in names)
            again = " and ".join(f"`encode --part {part}`" for part in parts) if parts[0].of > 1 else "`encode`"
            raise ResumeError(
                f"{self.path}: {missing} of {len(names)} shards are not there.", remedy=f"Run {again} with this recipe."
            )
        return names

    def missing_parts(self) -> list[Part]:
        """The parts that lack shards, of as many as the corpus was encoded in; 1/1 for one that was encoded at once.

        Raises ResumeError while no corpus is encoded to its end.
        """
        made = self._list()
        places = {place % made["parts"] for place, name in enumerate(made["shards"]) if not self.has(name)}
        return [Part(place + 1, made["parts"]) for place in sorted(places)]

    def totals(self, names: Iterable[str] | None = None) -> ShardTotals:
        """Count all shards, or those of these `names`, without reading a vector. ResumeError."""
        found = [self._arrays(name, "indptr", "cut") for name in (self.names() if names is None else names)]
        ends = [indptr for indptr, _ in found]
        return ShardTotals(
            len(found),
            sum(map(len, ends)) - len(found),
            sum(int(one[-1]) for one in ends),
            sum(int(c.sum()) for _, c in found),
        )

    @cached_property
    def _prefix(self) -> str:
        plan = json.dumps(self.plan, sort_keys=True).encode()
        return f"shard-{hashlib.blake2b(plan, digest_size=4).hexdigest()}-"

    @cached_property
    def _places(self) -> dict[bytes, tuple[str, int]]:
        """By a text's digest the name of a shard that has it, and the row."""
        return {text: (name, row) for name in self._others(()) for row, text in enumerate(self._texts(name))}

    def _others(self, names: Iterable[str]) -> list[str]:
        return sorted({file.stem for file in self.path.glob(f"{self._prefix}*.npz")} - set(names))

    def _texts(self, name: str) -> list[bytes]:
        return [digest.tobytes() for digest in self._arrays(name, "texts")[0]]

    def _arrays(self, name: str, *keys: str) -> list[npt.NDArray[Any]]:
        file = self._file(name)
        try:
            with np.load(file, allow_pickle=False) as arrays:
                return [arrays[key] for key in keys]
        except (*UNREADABLE, KeyError, BadZipFile) as error:
            raise ResumeError(
                f"{file}: the shard can't be read: {error}.", remedy="Delete it and run `encode` again."
            ) from error

    def _list(self) -> dict[str, Any]:
        file = self.path / "shards.json"
        if not file.is_file():
            raise ResumeError(f"{self.path}: the corpus is not encoded to its end.", remedy="Run `encode` again.")
        return read_json(file)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.npz"


def text_digest(text: str) -> bytes:
    """The digest that identifies a text: 16 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
