"""Memory that is free within the process, and the system could have."""

import ctypes

__all__ = ["give_back"]


def give_back() -> None:
    """Let the C library return the free pages of its heaps to the system.

    glibc keeps most of what was freed, for the next one who asks: after a start, what reading the vocabulary and
    compiling Java needed, tens of MiB in each process. A C library without `malloc_trim` is let alone.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
