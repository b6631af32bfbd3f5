"""Folders that appear on disk whole or not at all."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from artifacts.errors import BundleError

__all__ = ["new_folder"]


@contextmanager
def new_folder(target: Path, *, overwrite: bool, marker: str) -> Iterator[Path]:
    """Yield an empty folder beside `target` that takes its name when the block ends well.

    Everything is on the disk before the rename. When the block raises, the new folder is removed and `target` stays
    as it was. With `overwrite` an old folder is swapped out and removed, but only when it holds a file `marker`:
    a mistyped path must not cost anybody their files. Raises BundleError when `target` is in the way,
    or when the disk does not take it.
    """
    target = Path(target).absolute()
    _check_target(target, overwrite=overwrite, marker=marker)
    folder = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.new")
    try:
        folder.mkdir(parents=True)
        yield folder
        _sync(folder)
        _check_target(target, overwrite=overwrite, marker=marker)
        _swap(folder, target)
    except OSError as error:
        raise BundleError(
            f"{target} can't be written: {error}.", remedy="Look at free space and permissions."
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # not there any more when all went well


def _check_target(target: Path, *, overwrite: bool, marker: str) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not overwrite:
        raise BundleError(f"{target} exists already.", remedy="Choose another path, or pass --overwrite.")
    if target.is_symlink() or not (target / marker).is_file():
        raise BundleError(
            f"{target} exists and is not a folder with a {marker}, so it is not overwritten.",
            remedy="Remove it yourself, or choose another path.",
        )


def _sync(folder: Path) -> None:
    """Flush every file and folder to the disk."""
    for place, _, names in os.walk(folder):
        for path in [*(Path(place) / name for name in names), Path(place)]:
            _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _swap(folder: Path, target: Path) -> None:
    old = folder.with_suffix(".old")
    if target.exists():
        target.rename(old)
    try:
        folder.rename(target)
    except OSError:
        if old.exists():
            old.rename(target)
        raise
    _sync_one(target.parent)
    shutil.rmtree(old, ignore_errors=True)
