"""What the encoded corpus and the store of encoded texts share: digests of texts, and files that are mapped."""

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from lightretriever.artifacts.dtypes import Int64Array, UInt8Array
from lightretriever.artifacts.errors import ResumeError
from lightretriever.artifacts.files.arrays import UNREADABLE, load_npy
from lightretriever.artifacts.files.atomic_file import writing

DIGEST_BYTES: Final = 16


def text_digest(text: str) -> bytes:
    """The digest that identifies a text: 16 bytes."""
    return blake2b(text.encode(), digest_size=DIGEST_BYTES).digest()


def text_digests(texts: Iterable[str]) -> UInt8Array:
    """The digests of texts, (n, 16)."""
    return np.frombuffer(b"".join(map(text_digest, texts)), np.uint8).reshape(-1, DIGEST_BYTES)


class Digests:
    """Finds texts or lines by their digests (n, 16)."""

    def __init__(self, digests: UInt8Array) -> None:
        whole = _void(digests)
        self._order = np.argsort(whole, kind="stable")
        self._sorted = whole[self._order]

    def find(self, digests: UInt8Array) -> Int64Array:
        """The places (m,) of digests (m, 16), the first of equal ones; -1 for others."""
        if not len(self._sorted):
            return np.full(len(digests), -1, np.int64)
        wanted = _void(digests)
        index = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return np.where(self._sorted[index] == wanted, self._order[index], -1)


def _void(digests: UInt8Array) -> npt.NDArray[np.void]:
    return np.ascontiguousarray(digests).view(f"V{DIGEST_BYTES}")[:, 0]


def first_rows(digests: UInt8Array) -> Int64Array:
    """The places (m,), ascending, where each of the different digests (n, 16) comes first."""
    return np.sort(np.unique(_void(digests), return_index=True)[1])


def digest_of(digests: UInt8Array) -> str:
    """Return the digest of digests (n, 16), as hex."""
    return blake2b(digests.tobytes(), digest_size=DIGEST_BYTES).hexdigest()


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
