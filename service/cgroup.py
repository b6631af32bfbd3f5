"""What the system and the cgroup (version 2) grant this process: processors and memory."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_CGROUP: Final = Path("/proc/self/cgroup")


def processors() -> int:
    """Return the number of processors that this process has by its affinity and by the quotas of its cgroup and those
    above it, at least 1, parts rounded up."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota in _read("cpu.max"):
        granted, _, period = quota.partition(" ")
        if granted.isdecimal() and period.isdecimal() and int(period):  # not "max"
            allowed = min(allowed, -(-int(granted) // int(period)))
    return max(1, allowed)


def memory_bytes() -> int:
    """Return the bytes of memory that the machine has, or a cgroup of this process grants."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(int(limit) for limit in _read("memory.max") if limit.isdecimal())])


def _read(name: str) -> Iterator[str]:
    lines = _CGROUP.read_text("utf-8").splitlines() if _CGROUP.exists() else []
    lowest = _ROOT / next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/").lstrip("/")
    for folder in (lowest, *lowest.parents):  # in a container, the path may be the host's: its end is not there
        if folder.is_relative_to(_ROOT):
            try:
                yield (folder / name).read_text("ascii").strip()
            except (OSError, ValueError):
                continue
