"""Memory management of a process after start-up."""

import ctypes
import gc

__all__ = ["freeze_gc", "trim_heap"]


def trim_heap() -> None:
    """Return the free pages of glibc's heaps to the system: tens of MiB after a start.

    Does nothing if the C library has no `malloc_trim`.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def freeze_gc() -> None:
    """Exempt all present objects from Python's cycle collector.

    A full collection stops every thread while it visits every object, and most objects of a serving process belong to
    modules, which stay. Collects previously frozen objects first: a replaced bundle may be among them. This changes the
    collector of the whole process: call it only in a process that serves.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
