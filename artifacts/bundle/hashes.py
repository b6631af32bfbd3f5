"""Hashes of files: SHA-256 tells forged content, XXH3 tells damage in a fraction of the time."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lightretriever.artifacts.bundle.manifest import FileInfo
from xxhash import xxh3_128

__all__ = ["file_hashes", "ids_sha256", "list_files"]

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


def ids_sha256(ids: Iterable[str]) -> str:
    """SHA-256 of the ids joined by line breaks, as hex: `Manifest.ids_sha256` of documents in ordinal order."""
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()


def list_files(folder: Path) -> dict[str, FileInfo]:
    """Size and hashes of every file below `folder`, by POSIX path: what `Manifest.files` will hold."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): FileInfo(bytes=path.stat().st_size, **file_hashes(path)) for path in files
    }
