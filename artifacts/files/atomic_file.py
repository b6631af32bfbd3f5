"""Writing files that appear whole or not at all, to a disk that may be full."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lightretriever.artifacts.errors import DiskError
from lightretriever.artifacts.signals import commit_point


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
def new_file(path: Path, *, last: bool = False, partial: str | None = None) -> Iterator[BinaryIO]:
    """Yield a file that takes the name `path` when the block ends well, and is gone else. Its folder is made.

    `path` has either its old or its whole new content, whatever happens. With `last`, the file is the command's result:
    from its renaming on, a signal no longer stops the command. Until then it has the name `partial`, by default one
    that the next attempt takes again. Raises DiskError.
    """
    written = path.with_name(partial or f"{path.name}.partial")
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
