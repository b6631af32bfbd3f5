"""The documents of a bundle and those that were written later, searched as one index.

The documents of the bundle have the ordinals 0 to N - 1, and the k-th one that was written later has N + k, for ever. A
new version of a document is another document, and the one before is dead. What is dead stays in the indexes, and
searches leave it out; so an ordinal never stands for another document.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
from lightretriever.artifacts import kernels
from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.live.journal import Record
from lightretriever.artifacts.sparse.index import DocumentSet, ImpactIndex
from lightretriever.artifacts.sparse.later import LaterIndexWriter

__all__ = ["Among", "LaterDense", "Overlay", "Snapshot"]

Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
Bits = npt.NDArray[np.uint8]
_TERM_BYTES: Final = 8
_KEPT: Final = 64  # conditions whose documents a snapshot remembers


class LaterDense:
    """The dense index of a bundle, and that of the documents written later, searched as one. Thread-safe."""

    def __init__(self, first: DenseIndex, later: DenseIndex) -> None:
        self.first, self.later = first, later

    def search(self, query: npt.NDArray[np.float32], k: int, among: "Among") -> Found:
        """The best documents among some, as `DenseIndex.search` gives them. ValueError for a bad query or k."""
        found = self.first.search(query, k, among.first)
        if not self.later.count:
            return found
        ordinals, scores = self.later.search(query, k, among.later)
        both = np.concatenate([found[0], ordinals + self.first.count])
        return kernels.best_first(both, np.concatenate([found[1], scores]), k)

    def scores(self, query: npt.NDArray[np.float32], ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The scores (m,) float32 of given documents (m,). ValueError for an unknown ordinal or a bad query."""
        scores, later = np.empty(ordinals.size, np.float32), ordinals >= self.first.count
        scores[~later] = self.first.scores(query, ordinals[~later])
        scores[later] = self.later.scores(query, ordinals[later] - self.first.count)
        return scores

    def vectors(self, ordinals: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """The vectors (m, D) float32 of given documents (m,), as the indexes hold them. ValueError for an unknown
        ordinal."""
        vectors = np.empty((ordinals.size, self.first.dimension), np.float32)
        later = ordinals >= self.first.count
        vectors[~later] = self.first.vectors(ordinals[~later])
        vectors[later] = self.later.vectors(ordinals[later] - self.first.count)
        return vectors


@dataclass(frozen=True)
class Among:
    """Living documents of a snapshot, and the indexes that have them: as the sparse leg takes documents, and as bits
    for the two parts of the dense one; None for all that an index has."""

    index: ImpactIndex
    dense: LaterDense | None
    documents: DocumentSet | None = None
    first: Bits | None = None
    later: Bits | None = None


@dataclass(frozen=True)
class Snapshot:
    """What searches see up to the change `sequence`. `index` has the documents of the bundle and all written later,
    living or dead, `dense` their vectors, None without a dense leg. `alive` has a bit for each, None if all live;
    `living` is their number, and `later` that of the documents written later, living or dead. `all` are the living."""

    sequence: int
    index: ImpactIndex
    dense: LaterDense | None
    alive: Bits | None
    living: int
    later: int
    all: Among
    _known: dict[tuple[str, ...], Among] = field(default_factory=dict)

    def where(self, condition: tuple[str, ...]) -> Among:
        """Give the living documents that a condition holds for, as `ImpactIndex.where` reads it."""
        if (known := self._known.get(condition)) is not None:
            return known
        chosen = self.index.where(condition)
        if self.alive is not None:
            chosen = self.index.chosen(chosen.bits & self.alive)
        if len(self._known) >= _KEPT:
            self._known.clear()
        found = self._known[condition] = _among(self.index, self.dense, chosen, self.later)
        return found


def _among(index: ImpactIndex, dense: LaterDense | None, chosen: DocumentSet, later: int) -> Among:
    flags, first = np.unpackbits(chosen.bits, count=index.count, bitorder="little"), index.count - later
    parts = (flags[:first], flags[first:])
    return Among(index, dense, chosen, *(None if one.all() else np.packbits(one, bitorder="little") for one in parts))


class Overlay:
    """The changes after a bundle, in memory, made searchable. One thread at a time applies them; any number read
    `snapshot`."""

    def __init__(self, manifest: Manifest, index: ImpactIndex, dense: DenseIndex | None) -> None:
        """`index` and `dense` are the bundle's, and stay open."""
        self.snapshot: Snapshot
        """What searches see now."""
        self.changed: dict[str, tuple[int | None, int]] = {}
        """For every id that was changed, the ordinal of its document, None if it was deleted, and the number of the
        change. `snapshot` has every document in it."""
        self.bytes = 0
        """About how many bytes of the Java heap the documents take that were written later."""
        self._index, self._dense = index, dense
        self._vectors = None if dense is None else dense.empty()
        self._writer = LaterIndexWriter(index, manifest.fields, spellings=manifest.sparse.language is not None)
        self._alive = np.ones(index.count, np.bool_)
        self._publish(0)

    def find(self, document_id: str) -> tuple[int | None, int]:
        """Give the ordinal of the living document with this id, None if there is none, and the number of the change
        that made it, 0 for one of the bundle."""
        known = self.changed.get(document_id)
        return (self._index.ordinal(document_id), 0) if known is None else known

    def apply(self, records: Sequence[Record], sequence: int) -> None:
        """Make changes searchable, the last of which has the number `sequence`."""
        if not records:
            return
        written = [(one.id, one.raw, one.impacts, one.vector) for one in records if one.raw is not None]
        if written:
            ids, raws, impacts, vectors = zip(*written, strict=True)
            self._writer.add_rows(ids, raws, impacts)
            self.bytes += sum(map(len, raws)) + _TERM_BYTES * sum(map(len, impacts))
            if self._vectors is not None:
                self._vectors = self._vectors.plus(np.array(vectors, np.float32))
        new = list(dict.fromkeys(one.id for one in records if one.id not in self.changed))
        now: dict[str, int | None] = dict(zip(new, self._index.ordinals(new).tolist(), strict=True))
        now |= {one.id: self.changed[one.id][0] for one in records if one.id in self.changed}
        changed: dict[str, tuple[int | None, int]] = {}
        ordinal = self._alive.size
        self._alive = np.concatenate([self._alive, np.ones(len(written), np.bool_)])
        for number, record in enumerate(records, start=sequence - len(records) + 1):
            before = now[record.id]
            if before is not None and before >= 0:
                self._alive[before] = False
            now[record.id] = None if record.raw is None else ordinal
            changed[record.id] = now[record.id], number
            ordinal += record.raw is not None
        self._publish(sequence)
        self.changed.update(changed)

    def close(self) -> None:
        """Forget the changes; the bundle's indexes stay open."""
        self._writer.close()

    def _publish(self, sequence: int) -> None:
        index = self._writer.behind()
        dense = None if self._dense is None or self._vectors is None else LaterDense(self._dense, self._vectors)
        later, living = index.count - self._index.count, int(np.count_nonzero(self._alive))
        alive, every = None, Among(index, dense)
        if living < index.count:
            alive = np.packbits(np.pad(self._alive, (0, -index.count % 64)), bitorder="little")
            every = _among(index, dense, index.chosen(alive), later)
        self.snapshot = Snapshot(sequence, index, dense, alive, living, later, every)
