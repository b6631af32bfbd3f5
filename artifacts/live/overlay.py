"""The documents of a bundle and those that were written later, searched as one index.

The documents of the bundle have the ordinals 0 to N - 1, and the k-th one that was written later has N + k, for ever. A
new version of a document is another document, and the one before is dead. What is dead stays in the indexes, and
searches leave it out; so an ordinal never stands for another document.
"""

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.dense.index import DenseIndex
from lightretriever.artifacts.dense.later import LaterIndex
from lightretriever.artifacts.dense.later import LaterIndexWriter as DenseWriter
from lightretriever.artifacts.live.journal import FREE_BYTES, Record, free_bytes
from lightretriever.artifacts.sparse.index import ImpactIndex
from lightretriever.artifacts.sparse.writer import LaterIndexWriter

_MIN_MERGED: Final = 512  # documents in segments of their own that are worth one segment of all
_SHARE_MERGED: Final = 8  # if they are one in so many


@dataclass(frozen=True)
class Snapshot:
    """What searches see: the documents of the bundle and all written later, of which `index.alive` live, their
    vectors, None without a dense leg, and the number of the last change."""

    index: ImpactIndex
    dense: LaterIndex | None
    sequence: int


class Overlay:
    """The changes after a bundle, made searchable. One thread at a time applies them; any number read `snapshot`."""

    def __init__(self, manifest: Manifest, index: ImpactIndex, dense: DenseIndex | None, folder: Path) -> None:
        """`index` and `dense` are the bundle's, and stay open; `folder` is for files, and not there yet."""
        self.snapshot: Snapshot
        """What searches see now."""
        self.changed: dict[str, tuple[int | None, int]] = {}
        """For every id that was changed, the ordinal of its document, None if it was deleted, and the number of the
        change. `snapshot` has every document in it."""
        self._applied: dict[str, tuple[int | None, int]] = {}  # of `changed`, what searches don't see yet
        self._index = index
        self._merged = 0
        self._dense = None if dense is None else DenseWriter(dense)
        self._alive = np.ones(index.count, np.bool_)
        words = manifest.sparse
        self._writer = LaterIndexWriter(folder, manifest.fields, language=words.language, positions=words.positions)

    def find(self, document_id: str) -> tuple[int | None, int]:
        """Return the ordinal of the living document with this id, None if there is none, and the number of the change
        that made it, 0 for one of the bundle."""
        change = self.changed.get(document_id)
        return (self._index.ordinal(document_id), 0) if change is None else change

    def apply(self, records: Sequence[Record], sequence: int) -> None:
        """Index changes, the last of which has the number `sequence`; `publish` shows them to searches. After an
        exception the overlay is of no more use, but for its snapshot."""
        first = sequence - len(records) + 1
        if written := [record for record in records if record.raw is not None]:
            rows = zip(*((record.id, record.raw or b"", record.impacts) for record in written), strict=True)
            self._writer.add_rows(*rows)
            if self._dense is not None:
                self._dense.add(np.array([record.vector for record in written], np.float32))
        changes = ChainMap(self._applied, self.changed)
        new = list(dict.fromkeys(record.id for record in records if record.id not in changes))
        now: dict[str, int | None] = dict(zip(new, self._index.ordinals(new).tolist(), strict=True))
        now |= {record.id: changes[record.id][0] for record in records if record.id in changes}
        ordinal = self._alive.size
        self._alive = np.pad(self._alive, (0, len(written)), constant_values=True)
        for number, record in enumerate(records, start=first):
            before = now[record.id]
            if before is not None and before >= 0:
                self._alive[before] = False
            now[record.id] = None if record.raw is None else ordinal
            self._applied[record.id] = now[record.id], number
            ordinal += record.raw is not None

    def settle(self) -> bool:
        """Make codes of vectors that have none, and one segment of documents that are in several, unless they are few,
        or the disk has no room for it. Beside a thread that applies changes; return whether `publish` shows searches
        anything new."""
        coded = self._dense is not None and self._dense.encode()
        later = self.snapshot.index.count - self._index.count
        if later - self._merged < max(_MIN_MERGED, later // _SHARE_MERGED):
            return coded
        size = sum(file.stat().st_size for file in self._writer.path.iterdir())
        if free_bytes(self._writer.path) < 2 * size + FREE_BYTES:
            return coded
        self._writer.merge()
        self._merged = later
        return True

    def close(self) -> None:
        """Forget the changes, and remove their files; the bundle's indexes stay open, and so do snapshots."""
        self._writer.rollback()

    def prepare(self, sequence: int) -> Snapshot:
        """Return what `publish` shows: all that was applied, up to the change `sequence`. JavaError where the disk is
        full."""
        index = self._writer.behind(self._index)
        alive = np.packbits(np.pad(self._alive, (0, -index.count % 64)), bitorder="little")
        index.alive = index.chosen(alive)
        return Snapshot(index, None if self._dense is None else self._dense.behind(alive), sequence)

    def publish(self, snapshot: Snapshot) -> None:
        """Make a snapshot of all that was applied visible to searches."""
        self.snapshot = snapshot
        self.changed.update(self._applied)
        self._applied.clear()
