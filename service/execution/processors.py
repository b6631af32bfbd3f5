"""How many processors this process may use."""

import os
from pathlib import Path
from typing import Final

__all__ = ["processors"]

_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")


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
