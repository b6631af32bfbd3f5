"""Folders that appear on disk whole or not at all.

What a writer needs beside the target, for target NAME and a random TAG:

    .NAME.TAG.new    the folder being written; after the swap, what the target was before, until it is removed
    .NAME.TAG.old    only where the kernel can't swap two folders in one step: the target, out of the way for a moment

A writer holds a lock on its folder, which ends with its process however that ends. So an unlocked folder was left
behind, and the next writer of the same target clears it away.
"""

import ctypes
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.page_cache import forget_pages
from lightretriever.artifacts.signals import past_stopping, uninterrupted

__all__ = ["check_target", "new_folder"]

# From linux/fcntl.h and linux/fs.h.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# An old kernel, and a file system that can't do it.
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}


@contextmanager
def new_folder(target: Path, *, overwrite: bool, marker: str) -> Iterator[Path]:
    """Yield an empty folder beside `target` that takes its name when the block ends well.

    Writing a folder is the last thing that a command does: once it has its name, a signal does not stop the command.
    Everything is on the disk before the swap. When the block raises, the new folder is removed and `target` stays
    as it was. With `overwrite` an old folder is swapped out and removed, but only when it holds a file `marker`:
    a mistyped path must not cost anybody their files. What killed writers of `target` left behind is removed first,
    and a target that one of them had moved away is put back; on a network file system, writers on several machines
    don't see each other's locks and must not share a target. Raises BundleError when `target` is in the way, or when
    the disk does not take it.
    """
    target = Path(target).absolute()
    try:
        _clear_up(target)
        check_target(target, overwrite=overwrite, marker=marker)
        with _locked_folder(target) as folder:
            yield folder
            _sync(folder)
            with uninterrupted():
                check_target(target, overwrite=overwrite, marker=marker)
                _put_in_place(folder, target)
                past_stopping()
    except OSError as error:
        raise BundleError(
            f"{target} can't be written: {error}.", remedy="Look at free space and permissions."
        ) from error


def check_target(target: Path, *, overwrite: bool, marker: str) -> None:
    """Raise BundleError if `new_folder` would find something in the way."""
    if not os.path.lexists(target):
        return
    if target.is_symlink():
        raise BundleError(
            f"{target} is a link, so it is not overwritten.",
            remedy="Give a folder, such as the one that it leads to, or remove the link yourself.",
        )
    if not overwrite:
        raise BundleError(f"{target} exists already.", remedy="Choose another path, or pass --overwrite.")
    if not (target / marker).is_file():
        raise BundleError(
            f"{target} exists and has no {marker}, so it is not overwritten.",
            remedy="Remove it yourself, or choose another path.",
        )


@contextmanager
def _locked_folder(target: Path) -> Iterator[Path]:
    """A new, locked folder beside `target`; whatever has its name at the end is removed."""
    folder, lock = target, None
    try:
        with uninterrupted():
            while lock is None:  # until no other writer has taken the folder for a left-over, before it was locked
                folder = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.new")
                folder.mkdir(parents=True)
                lock = _lock(folder)
        yield folder
    finally:
        if lock is not None:
            with uninterrupted():
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder until the descriptor is closed. None when another process has it, or there is no such folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    locked = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = os.path.samestat(os.fstat(descriptor), folder.lstat())  # it may have been removed in between
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not locked:
            os.close(descriptor)
    return descriptor if locked else None


def _clear_up(target: Path) -> None:
    """Remove what killed writers of `target` left behind, and put a target back that they had moved away."""
    if not target.parent.is_dir():
        return
    pattern = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.(new|old)")
    left = [path for path in target.parent.iterdir() if pattern.fullmatch(path.name)]
    for folder in sorted({path.with_suffix(".new") for path in left}):
        with suppress(PermissionError):  # another user's
            _clear_up_one(folder, target)


def _clear_up_one(folder: Path, target: Path) -> None:
    lock = _lock(folder)
    if lock is None and os.path.lexists(folder):
        return  # it is being written
    old = folder.with_suffix(".old")
    try:
        if not os.path.lexists(target) and old.is_dir() and not old.is_symlink():
            with suppress(FileNotFoundError):  # another writer has just done it
                old.rename(target)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        if lock is not None:
            os.close(lock)


def _sync(folder: Path) -> None:
    """Flush every file and folder to the disk."""
    for place, _, names in os.walk(folder):
        for path in [*(Path(place) / name for name in names), Path(place)]:
            _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        forget_pages(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(folder: Path, target: Path) -> None:
    """Give `folder` the name of `target`, and a folder that had it the name of `folder`."""
    if not os.path.lexists(target):
        folder.rename(target)
    elif not _exchange(folder, target):
        _exchange_in_steps(folder, target)
    _sync_one(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step. False, and nothing done, when the C library, the kernel or the file system can't."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _exchange_in_steps(folder: Path, target: Path) -> None:
    """The same with plain renames. When the process is killed in between, the next writer puts `target` back."""
    old = folder.with_suffix(".old")
    try:
        target.rename(old)
        folder.rename(target)
    except BaseException:
        if old.exists() and not os.path.lexists(target):
            old.rename(target)
        raise
    with suppress(FileNotFoundError):  # another writer may have cleared it up already
        old.rename(folder)
