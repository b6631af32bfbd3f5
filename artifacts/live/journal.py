"""The journal of changes after a bundle: each is on the disk, with a checksum, before it is acknowledged.

A folder has files SEQUENCE.journal, named by the number of their first change in 20 digits; changes are numbered from 1
for ever. A file is a row of frames: the magic bytes, a CRC-32 of all that follows, the number of bytes, the number of
the first change and how many there are, then JSON and float32 vectors. The first frame of a file is its `Header`; each
other one has the changes that were acknowledged together. The writer holds a lock; readers need none, and take
whole frames only.
"""

import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from time import perf_counter, sleep
from typing import Final, NamedTuple, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import orjson
from lightretriever.artifacts.bundle.manifest import Manifest
from lightretriever.artifacts.errors import DiskError, JournalError
from lightretriever.artifacts.files.atomic_file import new_file, writing
from pydantic import BaseModel, ConfigDict, ValidationError

__all__ = ["Header", "Journal", "Record"]

_log = logging.getLogger(__name__)
_MAGIC: Final = b"LRJ1"
_HEAD: Final = struct.Struct("<4sIQQQ")
_CHECKED_FROM: Final = 8  # bytes of the head that the checksum leaves out: the magic and itself
_LARGEST_BYTES: Final = 64 << 20  # of a file, before the next one begins
_POLL_S: Final = 0.002
_RESTORE: Final = (
    "Restore the folder from a copy, or move it away: the bundle is then served without the changes in it."
)


class Header(BaseModel):
    """The bundle that a journal was begun with, and the facts that must be the same in every bundle that is served
    with it. `dimension` is D, None without a dense leg, `model` the SHA-256 of the model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    journal: str
    bundle: str
    dimension: int | None
    vocabulary: str
    model: str | None

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Describe a new journal beside a bundle."""
        return cls(
            journal=uuid4().hex[:12],
            bundle=manifest.digest,
            dimension=None if manifest.dense is None else manifest.dimension,
            vocabulary=manifest.sparse.vocabulary,
            model=manifest.model.sha256,
        )


class Record(NamedTuple):
    """A document as it was written, whole, with its vector (D,) of length 1, None without a dense leg, and its impacts
    by term; `raw` is its JSON, None for one that was deleted."""

    id: str
    raw: bytes | None = None
    vector: npt.NDArray[np.float32] | None = None
    impacts: Mapping[str, int] = {}


@dataclass(frozen=True)
class _Frame:
    """A frame of a file: the number of its first change, how many it has, its content, and where the next begins."""

    first: int
    count: int
    body: bytes
    end: int


class Journal:
    """A journal, open for reading from its first change on, and for writing. One thread at a time."""

    sequence: int
    """The number of the last change that was read or appended."""

    first: int
    """The number of the first change that the journal has."""

    header: Header
    """That of the file which is read."""

    _file: int = -1
    _first: int
    _end: int

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        """Open the journal of a folder, or begin one for a bundle. JournalError for a damaged one, and for one of
        another model; DiskError."""
        self.folder = folder
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("ab")
        try:
            with self._locked():
                files = self._files()
                if not files:
                    self._begin(Header.of(manifest), 1)
                    files = self._files()
                self.first = _number(files[0])
                self._open(files[0])
                self._check(Header.of(manifest))
        except BaseException:
            self._lock.close()
            raise

    def read(self, most: float = inf, after: int = 0) -> list[Record]:
        """Give the changes since the last one read or appended that are whole on the disk, `most` or a few more. Those
        numbered up to `after` are checked, but left out, unless they were written with later ones. JournalError."""
        found: list[Record] = []
        while True:
            while len(found) < most and (frame := self._frame()) is not None:
                if frame.first != self.sequence + 1:
                    raise self._damaged()
                if self.sequence + frame.count > after:
                    found += self._records(frame)
                self.sequence, self._end = self.sequence + frame.count, frame.end
            later = self._path(self.sequence + 1)
            if len(found) >= most or self._first == self.sequence + 1 or not later.exists():
                return found
            if self._frame() is None:  # no change came before the next file was begun
                if os.fstat(self._file).st_size > self._end:
                    raise self._damaged()
                self._open(later)

    def position_of(self, manifest: Manifest) -> int:
        """Give the number of the last change that a bundle has, 0 for none. JournalError if the journal no longer has
        the ones after it."""
        live = manifest.live
        position = live.position if live is not None and live.journal == self.header.journal else 0
        if self.first > position + 1:
            raise JournalError(
                f"{self.folder}: the journal begins with change {self.first}, and the bundle has its changes up to "
                f"{position}.",
                remedy="Serve the bundle that `lightretriever compact` made of them, or give an empty folder.",
            )
        return position

    @contextmanager
    def writing(self, until: float) -> Iterator[list[Record]]:
        """Be the one writer of all processes in the block; yields the changes since the last one read or appended. Cuts
        off an end that was not written whole, and logs it. TimeoutError if another is the writer until the
        `perf_counter` time `until`, JournalError."""
        with self._locked(until):
            missed = self.read()
            self._cut_end()
            yield missed

    def append(self, records: Sequence[Record]) -> None:
        """Write changes, and return when they are on the disk. To be called in the block of `writing`. DiskError, after
        which the file is as it was."""
        if self._end > _LARGEST_BYTES:
            self.rotate()
        frame = _packed(self.sequence + 1, len(records), _body(records))
        try:
            with writing(self._path(self._first)):
                _write(self._file, frame, self._end)
                os.fsync(self._file)
        except DiskError:
            with suppress(OSError):  # the next writer cuts it off otherwise
                os.ftruncate(self._file, self._end)
            raise
        self.sequence += len(records)
        self._end += len(frame)

    def rotate(self) -> None:
        """Begin another file behind the last change, unless there is no change in this one. To be called in the block
        of `writing`. DiskError."""
        if self.sequence >= self._first:
            self._begin(self.header, self.sequence + 1)
            self._open(self._path(self.sequence + 1))

    def drop(self, position: int) -> None:
        """Remove the files whose changes are all numbered up to `position`. To be called in the block of `writing`."""
        files = self._files()
        for file, later in pairwise(files):
            if _number(later) <= position + 1:
                file.unlink(missing_ok=True)
        self.first = _number(self._files()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Idempotent."""
        if not self._lock.closed:
            self._lock.close()
            os.close(self._file)

    @contextmanager
    def _locked(self, until: float | None = None) -> Iterator[None]:
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | (0 if until is None else fcntl.LOCK_NB))
                break
            except BlockingIOError:
                if until is not None and perf_counter() >= until:
                    raise TimeoutError(f"{self.folder}: another process wrote to the journal all the time.") from None
                sleep(_POLL_S)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _begin(self, header: Header, first: int) -> None:
        with new_file(self._path(first)) as file:
            file.write(_packed(first, 0, header.model_dump_json().encode()))
        with writing(self.folder):
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def _open(self, path: Path) -> None:
        """Go on reading and writing at the first change of a file."""
        with writing(path):
            file = os.open(path, os.O_RDWR)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._end, self._first = file, 0, _number(path)
        self.sequence = self._first - 1
        frame = self._frame()
        try:
            header = None if frame is None else Header.model_validate_json(frame.body)
        except ValidationError:
            header = None
        if frame is None or header is None or frame.first != self._first:
            raise self._damaged()
        self.header, self._end = header, frame.end

    def _frame(self) -> _Frame | None:
        """Read the next frame; None if it is not there, or not whole."""
        return _frame_at(self._file, self._end)

    def _records(self, frame: _Frame) -> list[Record]:
        """Read the changes of a frame. JournalError if it was not written by this program."""
        try:
            records = _records(frame.body, self.header.dimension)
        except (struct.error, ValueError, TypeError) as error:
            raise self._damaged() from error
        if len(records) != frame.count:
            raise self._damaged()
        return records

    def _cut_end(self) -> None:
        """Cut off what a writer left that was killed. JournalError if whole changes follow it."""
        if _number(self._files()[-1]) != self._first:  # one between is missing
            raise self._damaged()
        if (size := os.fstat(self._file).st_size) > self._end:
            rest = os.pread(self._file, size - self._end, self._end)
            place = rest.find(_MAGIC, 1)
            while place > 0:
                if _frame_at(self._file, self._end + place) is not None:
                    raise self._damaged()
                place = rest.find(_MAGIC, place + 1)
            about = {"file": str(self._path(self._first)), "bytes": size - self._end, "kept": self.sequence}
            _log.warning("journal cut behind its last whole change", extra=about)
            with writing(self._path(self._first)):
                os.ftruncate(self._file, self._end)
                os.fsync(self._file)

    def _check(self, expected: Header) -> None:
        for name in ("dimension", "vocabulary", "model"):
            found, wanted = getattr(self.header, name), getattr(expected, name)
            if found != wanted:
                raise JournalError(
                    f"{self.folder}: the journal's {name} is {found}, the bundle's {wanted}.",
                    remedy="Serve a bundle of the same model, or give an empty folder.",
                )

    def _damaged(self) -> JournalError:
        where = f"{self._path(self._first)}, byte {self._end}"
        return JournalError(f"{where}: the journal is damaged behind change {self.sequence}.", remedy=_RESTORE)

    def _path(self, first: int) -> Path:
        return self.folder / f"{first:020d}.journal"

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.journal"))


def _number(path: Path) -> int:
    return int(path.stem)


def _packed(first: int, count: int, body: bytes) -> bytes:
    head = _HEAD.pack(_MAGIC, 0, len(body), first, count)[_CHECKED_FROM:]
    return _MAGIC + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + head + body


def _frame_at(file: int, start: int) -> _Frame | None:
    head = os.pread(file, _HEAD.size, start)
    if len(head) < _HEAD.size:
        return None
    magic, checksum, size, first, count = _HEAD.unpack(head)
    if magic != _MAGIC or size > os.fstat(file).st_size - start - _HEAD.size:
        return None
    body = os.pread(file, size, start + _HEAD.size)
    if len(body) < size or zlib.crc32(body, zlib.crc32(head[_CHECKED_FROM:])) != checksum:
        return None
    return _Frame(first, count, body, start + _HEAD.size + size)


def _write(file: int, content: bytes, start: int) -> None:
    written = 0
    while written < len(content):
        written += os.pwrite(file, content[written:], start + written)


def _body(records: Sequence[Record]) -> bytes:
    """The number of bytes of JSON, the JSON, and the vectors of those that have one."""
    rows = [
        [one.id, one.vector is not None, dict(one.impacts), None if one.raw is None else one.raw.decode()]
        for one in records
    ]
    text = orjson.dumps(rows)
    vectors = b"".join(one.vector.astype("<f4").tobytes() for one in records if one.vector is not None)
    return struct.pack("<Q", len(text)) + text + vectors


def _records(body: bytes, dimension: int | None) -> list[Record]:
    """Read the content of a frame. struct.error, ValueError or TypeError for another one than `_body` writes."""
    (text,) = struct.unpack_from("<Q", body)
    at, size, records = 8 + text, dimension or 0, list[Record]()
    for document_id, has_vector, impacts, raw in orjson.loads(memoryview(body)[8:at]):
        if not (isinstance(document_id, str) and isinstance(impacts, dict) and isinstance(raw, str | None)):
            raise TypeError(f"a change has {document_id!r:.80}, {impacts!r:.80} and {raw!r:.80}")
        vector = None
        if has_vector:
            vector, at = np.frombuffer(body, "<f4", size, at), at + 4 * size
        records.append(Record(document_id, None if raw is None else raw.encode(), vector, impacts))
    return records
