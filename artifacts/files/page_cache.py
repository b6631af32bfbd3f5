"""Files in the page cache, and memory, in huge pages where the system can hold them so.

A search jumps to hundreds of places in files of many hundred megabytes, and where these are mapped in pages of 4 KiB,
most jumps wait for the processor to find the page. Linux maps a file in pages of 2 MiB when it lies in the cache in
such pieces. So it does, in file systems that can (ext4 and XFS of newer kernels), when it was read through a mapping
that asks for it; but what was written lies there in the pieces that it was written in, and is best left out. Elsewhere
a file is read no faster and no slower for all of this.
"""

import ctypes
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Ahead", "forget_pages", "huge_memory"]

# What Python lacks of Linux' advice.
_POPULATE_READ: Final = 22  # MADV_POPULATE_READ of 5.14; it has no signal for a short file
_HUGE: Final = 2 << 20


class Ahead:
    """Brings a file into the page cache, part by part, before it is read, while other threads run. Where that is
    impossible, nothing happens: who reads it then is told why."""

    def __init__(self, path: Path) -> None:
        self._mapped: npt.NDArray[np.uint8] | None = None
        if hasattr(mmap, "MADV_HUGEPAGE"):  # on Linux
            with suppress(OSError, ValueError):  # ValueError: it is empty
                self._mapped = np.memmap(path, np.uint8, "r")
                self._advise(0, self._mapped.size, mmap.MADV_HUGEPAGE)

    def bring(self, start: int, size: int) -> None:
        """Bring the part that begins at the byte `start`, as far as there is one."""
        if self._mapped is not None and start < self._mapped.size:
            first = start - start % mmap.PAGESIZE
            self._advise(first, min(start + size, self._mapped.size) - first, _POPULATE_READ)

    def _advise(self, start: int, size: int, advice: int) -> None:
        # Python's own madvise would hold the interpreter's lock until the disk has answered.
        if self._mapped is not None:
            _madvise()(self._mapped.ctypes.data + start, size, advice)


def huge_memory(size: int) -> npt.NDArray[np.uint8]:
    """Memory of the process' own, (size,), in huge pages as far as the system has some."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    mapped = mmap.mmap(-1, size + _HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)
    return memory[-memory.ctypes.data % _HUGE :][:size]


@cache
def _madvise() -> Callable[[int, int, int], int]:
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return madvise


def forget_pages(descriptor: int) -> None:
    """Leave a file that was written and synced out of the page cache; who needs it will read it."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
