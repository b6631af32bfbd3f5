"""Files in the page cache, in huge pages where the system can hold them so.

A search jumps to hundreds of places in files of many hundred megabytes, and where these are mapped in pages of 4 KiB,
most jumps wait for the processor to find the page. Linux maps a file in pages of 2 MiB when it lies in the cache in
such pieces. So it does, in file systems that can (ext4 and XFS of newer kernels), when it was read through a mapping
that asks for it; but what was written lies there in the pieces that it was written in, and is best left out. Elsewhere
all of this does no more than reading a file ahead.
"""

import ctypes
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

__all__ = ["forget_pages", "read_ahead"]

_POPULATE_READ: Final = 22  # MADV_POPULATE_READ of Linux 5.14, which Python lacks; it has no signal for a short file


def read_ahead(path: Path) -> None:
    """Read a file into the page cache, while other threads run. Where that is impossible, nothing happens: who reads it
    then is told why."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # not on Linux
        return
    # Python's own madvise would hold the interpreter's lock until the disk has answered.
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    with suppress(OSError, ValueError):  # ValueError: it is empty
        mapped = np.memmap(path, np.uint8, "r")
        for advice in (mmap.MADV_HUGEPAGE, _POPULATE_READ):
            madvise(mapped.ctypes.data, mapped.size, advice)


def forget_pages(descriptor: int) -> None:
    """Leave a file that was written and synced out of the page cache; who needs it will read it."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
