"""Writing files that appear whole or not at all, to a disk that may be full."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lightretriever.artifacts.errors import DiskError
from lightretriever.artifacts.signals import past_stopping, uninterrupted

__all__ = ["new_file", "writing"]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let what the system says against writing `path` name the file and the remedy: DiskError for OSError."""
    try:
        yield
    except OSError as error:
        raise DiskError(
            f"{path} can't be written: {error.strerror or error}.",
            remedy="Look at free space and permissions, and run the same command again.",
        ) from error


@contextmanager
def new_file(path: Path, *, last: bool = False) -> Iterator[BinaryIO]:
    """Yield a file that takes the name `path` when the block ends well, and is gone else. Its folder is made.

    `path` has either its old or its whole new content, whatever happens. Where it is the `last` thing that a command
    does, a signal does not stop the command once the file is there. Raises DiskError.
    """
    partial = path.with_name(f"{path.name}.partial")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            with uninterrupted():
                partial.replace(path)
                if last:
                    past_stopping()
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise
