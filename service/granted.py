"""What the system and the cgroup grant this process: processors and memory."""

import os
from pathlib import Path
from typing import Final

__all__ = ["memory_bytes", "processors"]

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
_MEMORY: Final = Path("/sys/fs/cgroup/memory.max")


def processors(quota: Path = _QUOTA) -> int:
    """Give the number of processors that the system and the cgroup grant this process, at least 1.

    A part of a processor counts as a whole one. `quota` is the file of cgroup v2, "MICROSECONDS PERIOD" or "max
    PERIOD"; without it the affinity of the process counts alone.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        granted, period = quota.read_text("ascii").split()
        return max(1, min(allowed, -(-int(granted) // int(period))))
    except (OSError, ValueError):
        return max(1, allowed)


def memory_bytes(limit: Path = _MEMORY) -> int:
    """Give the memory in bytes that the machine has, or that the cgroup grants, if that is less.

    `limit` is the file of cgroup v2, a number or "max"; without it the machine's memory counts alone.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        return min(machine, int(limit.read_text("ascii")))
    except (OSError, ValueError):
        return machine
