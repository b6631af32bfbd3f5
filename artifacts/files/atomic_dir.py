"""Folders that appear on disk whole or not at all.

For a target NAME, a writer keeps two folders beside it:

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

from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.signals import commit_point


@contextmanager
def new_folder(target: Path, *, overwrite: bool, marker: str) -> Iterator[Path]:
    """Yield an empty folder beside `target` that takes its name when the block ends well.

    A command writes such a folder last: once the folder takes its name, a signal no longer stops the command.
    Everything is on the disk before the swap. When the block raises, the new folder is removed and `target` stays as it
    was. `overwrite` replaces an old folder, but only one that holds a file `marker`: a mistyped path must not cost
    anybody their files. What killed writers of `target` left behind is removed first. Locks don't reach other machines:
    on a network file system, two machines must not write the same target.

    Raises BundleError when `target` is in the way, another process is writing it, or the disk does not take it.
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

    Raises BundleError if another process holds the lock.
    """
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
