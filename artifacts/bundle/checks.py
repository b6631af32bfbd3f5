"""Checks of a bundle's files against its manifest. Each yields what it found instead of raising.

SHA-256 tells forged content, XXH3 tells damage in a fraction of the time.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from xxhash import xxh3_128

from lightretriever.artifacts.bundle.manifest import MANIFEST_FILE, FileInfo, Manifest
from lightretriever.artifacts.errors import BundleError

_NEW: Final[dict[str, Any]] = {"sha256": hashlib.sha256, "xxh3": xxh3_128}
# Large, because a thread waits for the interpreter after each read, and a busy service makes it wait long.
_BUFFER: Final = 2**23


def file_hashes(path: Path, names: Iterable[str] = tuple(_NEW)) -> dict[str, str]:
    """The hashes of a file's content as hex, by name: "sha256", "xxh3" (128 bits). The file is read once. OSError."""
    hashes = {name: _NEW[name]() for name in names}
    buffer = memoryview(bytearray(max(1, min(_BUFFER, path.stat().st_size))))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            for digest in hashes.values():
                digest.update(buffer[:count])
    return {name: digest.hexdigest() for name, digest in hashes.items()}


def ids_sha256(ids: Iterable[str]) -> str:
    """Return `Manifest.ids_sha256` of documents in ordinal order: the SHA-256 of their ids joined by line breaks."""
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()


def list_files(folder: Path) -> dict[str, FileInfo]:
    """Size and hashes of every file below `folder`, by POSIX path: what `Manifest.files` will hold."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): FileInfo(bytes=path.stat().st_size, **file_hashes(path)) for path in files
    }


_FETCH = "Fetch or build the bundle again."
# Lucene leaves its lock file behind; it is empty and belongs to whoever last looked at the index.
_LOCK_FILE = "write.lock"
_HASH_NAMES: Final = {"sha256": "SHA-256", "xxh3": "XXH3"}


@dataclass(frozen=True)
class Problem:
    """One inconsistency: the file (relative to the bundle), what is wrong, both values, and what to do."""

    file: str
    message: str
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}: {self.message}: expected {self.expected}, found {self.found}. {self.remedy}"


class ProblemError(BundleError):
    """A part of the bundle in the folder `root` has a `problem`."""

    def __init__(self, root: Path, problem: Problem) -> None:
        super().__init__(
            f"{root / problem.file}: {problem.message}: expected {problem.expected}, found {problem.found}.",
            remedy=problem.remedy,
        )
        self.problem = problem


def raise_first(root: Path, problems: Iterator[Problem]) -> None:
    """Raise ProblemError for the first problem, if there is one."""
    for problem in problems:
        raise ProblemError(root, problem)


def differs(file: str, message: str, expected: object, found: object, remedy: str = _FETCH) -> Iterator[Problem]:
    """A problem when the two values are not equal."""
    if expected != found:
        yield Problem(file, message, str(expected), str(found), remedy)


def check_file(root: Path, manifest: Manifest, file: str) -> Iterator[Problem]:
    """Check whether a listed file is there, inside the bundle, a regular file, and as long as it should be."""
    path = root / file
    size = manifest.files[file].bytes
    real = Path(os.path.realpath(path))  # unlike resolve(), it raises nothing for a link to itself
    if not real.is_relative_to(os.path.realpath(root)):
        yield Problem(
            file, "a link leaves the bundle", f"a file below {root}", str(real), "Copy the file itself there."
        )
    elif not path.exists():
        yield Problem(file, "the file is missing", f"{size} bytes", "no file", _FETCH)
    elif not path.is_file():
        yield Problem(file, "not a regular file", f"{size} bytes", "something else", _FETCH)
    else:
        yield from differs(file, "wrong size", f"{size} bytes", f"{path.stat().st_size} bytes")


def check_unlisted(root: Path, manifest: Manifest) -> Iterator[Problem]:
    """Files that lie in the bundle's folder but are not part of it."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            file = (Path(folder) / name).relative_to(root).as_posix()
            is_lock = file == f"{manifest.sparse.directory}/{_LOCK_FILE}"
            if file not in manifest.files and file != MANIFEST_FILE and not is_lock:
                yield Problem(file, "the manifest does not list it", "no such file", "a file", "Remove the file.")


def check_hash(root: Path, manifest: Manifest, file: str, *, forged: bool = True) -> Iterator[Problem]:
    """Check whether the content of a file is what the manifest was written for, by every hash listed there.

    Without `forged`, by XXH3 alone, several times as fast, which finds any damage but no forgery.
    """
    info = manifest.files[file]
    expected = {"xxh3": info.xxh3} | ({"sha256": info.sha256} if forged else {})
    try:
        hashes = file_hashes(root / file, expected)
    except OSError as error:
        yield Problem(file, "the file can't be read", "a readable file", str(error.strerror), _FETCH)
        return
    for name in sorted(expected):
        if expected[name] != hashes[name]:
            message = f"wrong {_HASH_NAMES[name]}, the content was changed"
            yield Problem(file, message, expected[name], hashes[name], _FETCH)
            return
