"""Files and folders that appear on disk whole or not at all.

For a folder NAME, a writer keeps two folders beside it:

    .NAME.new    the folder being written, locked by its writer; a lock ends with its process, however that ends
    .NAME.old    while the new folder takes its name, what the target was before

The swap is two renames, because plain Unix has no call that exchanges two folders. Between them, for some microseconds,
there is no NAME. If the process is killed in this moment, the next writer of the same target puts the old folder back.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final
from uuid import uuid4

from lightretriever.artifacts.errors import BundleError, DiskError
from lightretriever.artifacts.signals import commit_point

PARTIAL: Final = "{}.{}.partial"  # the name of a file while it is written, of its own name and of hexadecimal digits


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise DiskError, which names `path` and the remedy, for an OSError of the block."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"{path} can't be written: {error.strerror or error}.",
            remedy="Look at free space and permissions, and run the same command again.",
        ) from error


@contextmanager
def new_file(path: Path, *, last: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that takes the name `path` when the block ends well, and is gone else. Its folder is made. `path`
    has either its old or its whole new content, whatever happens, also where several processes write it. With `last`,
    the file is the command's result: from its renaming on, a signal no longer stops the command, and what a killed one
    left is written over by the next. Raises DiskError."""
    written = path.with_name(f"{path.name}.partial" if last else PARTIAL.format(path.name, uuid4().hex))
    with writing(path):
        if path.exists() and not path.is_file():  # a folder, or a device, which would be replaced
            raise OSError(0, "it is no regular file")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with written.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if last:
                commit_point()
            written.replace(path)
        except BaseException:
            with suppress(OSError):
                written.unlink()
            raise


@contextmanager
def new_folder(target: Path, *, overwrite: bool, marker: str) -> Iterator[Path]:
    """Yield an empty folder beside `target` that takes its name when the block ends well, and is removed else.

    Everything is on the disk before the swap, after which a signal no longer stops the command. `overwrite` replaces an
    old folder, but only one that holds a file `marker`: a mistyped path must not cost anybody their files. Locks don't
    reach other machines: on a network file system, two must not write the same target. BundleError when `target` is in
    the way, another process is writing it, or the disk does not take it.
    """
    target = Path(target).absolute()
    new, old = (target.with_name(f".{target.name}.{suffix}") for suffix in ("new", "old"))
    try:
        with _locked_folder(new):
            _clear_up(target, new, old)
            _check_free(target, overwrite=overwrite, marker=marker)
            yield new
            for parent, _, names in os.walk(new):
                for path in [*(Path(parent) / name for name in names), Path(parent)]:
                    sync(path)
            _check_free(target, overwrite=overwrite, marker=marker)
            commit_point()
            _put_in_place(target, new, old)
    except OSError as error:
        raise BundleError(
            f"{target} can't be written: {error}.", remedy="Look at free space and permissions."
        ) from error


def check_target(target: Path, *, overwrite: bool, marker: str) -> None:
    """Raise BundleError if `new_folder` would, before hours of work: the folder is begun and removed again."""
    with suppress(_TriedError), new_folder(target, overwrite=overwrite, marker=marker):
        raise _TriedError


class _TriedError(Exception):
    """A folder could be begun."""


def _check_free(target: Path, *, overwrite: bool, marker: str) -> None:
    """Raise BundleError for something in the way."""
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
def _locked_folder(folder: Path) -> Iterator[None]:
    """Make a folder, or take over one that a killed writer left; remove it when the block fails."""
    lock = None
    while lock is None:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder until the returned descriptor is closed. None if its former writer has just removed or renamed it.
    Raises BundleError if another process holds the lock."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    locked = False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = os.path.samestat(os.fstat(descriptor), folder.lstat())
    except FileNotFoundError:
        pass
    except BlockingIOError as error:
        raise BundleError(
            f"{folder} is being written by another process.", remedy="Wait for it, or choose another path."
        ) from error
    finally:
        if not locked:
            os.close(descriptor)
    return descriptor if locked else None


def _clear_up(target: Path, new: Path, old: Path) -> None:
    """Undo what a killed writer left: put a target back that it had moved away, and remove the rest."""
    if old.is_dir() and not old.is_symlink() and not os.path.lexists(target):
        old.rename(target)
    for left in [*new.iterdir(), old]:
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(target: Path, new: Path, old: Path) -> None:
    """Return `new` the name of `target`, and remove what had it."""
    if os.path.lexists(target):
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        with suppress(OSError):
            old.rename(target)
        raise
    sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)
