"""Hashes of files: SHA-256 tells forged content, XXH3 tells damage in a fraction of the time."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from xxhash import xxh3_128

from lightretriever.artifacts.bundle.manifest import FileInfo

__all__ = ["IdsHash", "file_hashes", "list_files"]

_NEW: Final[dict[str, Any]] = {"sha256": hashlib.sha256, "xxh3": xxh3_128}
# Large, because a thread waits for the interpreter after each read, and a busy service makes it wait long.
_BUFFER: Final = 2**23


def file_hashes(path: Path, names: Iterable[str] = tuple(_NEW)) -> dict[str, str]:
    """The hashes of a file's content as hex, by name: "sha256", "xxh3" (128 bits). The file is read once. OSError."""
    hashes = {name: _NEW[name]() for name in names}
    buffer = memoryview(bytearray(max(1, min(_BUFFER, path.stat().st_size))))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            for one in hashes.values():
                one.update(buffer[:count])
    return {name: one.hexdigest() for name, one in hashes.items()}


class IdsHash:
    """SHA-256 of ids joined by line breaks: `Manifest.ids_sha256` of documents in ordinal order. `count` are those that
    were added."""

    def __init__(self, ids: Sequence[str] = ()) -> None:
        self.count, self._hash = 0, hashlib.sha256()
        self.add(ids)

    def add(self, ids: Sequence[str]) -> None:
        """Add the next ids."""
        if ids:
            self._hash.update("\n".join([""] * (self.count > 0) + [*ids]).encode())
            self.count += len(ids)

    def hex(self) -> str:
        """The hash of those that were added up to now."""
        return self._hash.hexdigest()


def list_files(folder: Path) -> dict[str, FileInfo]:
    """Size and hashes of every file below `folder`, by POSIX path: what `Manifest.files` will hold."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): FileInfo(bytes=path.stat().st_size, **file_hashes(path)) for path in files
    }
