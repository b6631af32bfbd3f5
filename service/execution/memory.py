"""What a process does about its memory when it has what it serves."""

import ctypes
import gc

__all__ = ["freeze_gc", "trim_heap"]


def trim_heap() -> None:
    """Return the free pages of glibc's heaps to the system: tens of MiB after a start.

    Does nothing with a C library that has no `malloc_trim`.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def freeze_gc() -> None:
    """Let Python's cycle collector look only at what is made from now on.

    A full collection stops every thread until it has looked at every object, and most objects of a process that serves
    belong to modules, which stay. What was frozen before is collected once more first, because a bundle that was
    replaced may be among it. This is the collector of the whole process: call it only in a process that serves.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
