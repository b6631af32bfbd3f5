"""Writing files to a disk that may be full."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from artifacts.errors import DiskError

__all__ = ["writing"]


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
