"""A disk that is full."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["full_disk"]


@contextmanager
def full_disk(file_bytes: int) -> Iterator[None]:
    """Let no file that this process writes grow beyond so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
