"""Hashes of files."""

import hashlib
from pathlib import Path

from lightretriever.artifacts.bundle.manifest import FileInfo
from xxhash import xxh3_128

__all__ = ["list_files"]


def list_files(folder: Path) -> dict[str, FileInfo]:
    """Size and hashes of every file below `folder`, by POSIX path: `Manifest.files` before the manifest is there."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _info(path) for path in files}


def _info(path: Path) -> FileInfo:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        xxh3 = hashlib.file_digest(file, xxh3_128).hexdigest()
    return FileInfo(bytes=path.stat().st_size, sha256=sha256, xxh3=xxh3)
