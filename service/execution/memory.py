"""What a process does about its memory when it has what it serves."""

import ctypes
import gc

__all__ = ["give_back", "settle"]


def give_back() -> None:
    """Let the C library return the free pages of its heaps to the system.

    glibc keeps most of what was freed, for the next one who asks: after a start, what reading the vocabulary and
    compiling Java needed, tens of MiB in each process. A C library without `malloc_trim` is let alone.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def settle() -> None:
    """Let Python's collector of cycles look, from now on, only at what is made from now on.

    A full collection holds all threads until it has looked at every object, and most of a process that serves are those
    of modules, which stay. What was settled before is looked through once more first, because a bundle that was
    replaced may be among it. To be called where nothing else needs the collector: it is that of the whole process.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
