"""What the system and the cgroup (version 2) grant this process: processors and memory."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_CGROUP: Final = Path("/proc/self/cgroup")


def processors(root: Path = _ROOT, cgroup: Path = _CGROUP) -> int:
    """Return the number of processors that this process has by its affinity and by the quotas of its cgroup and those
    above it, at least 1, parts rounded up. `root` is where cgroups are mounted, `cgroup` names the process's."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota in _read(root, cgroup, "cpu.max"):
        granted, _, period = quota.partition(" ")
        if granted.isdecimal() and period.isdecimal() and int(period):  # not "max"
            allowed = min(allowed, -(-int(granted) // int(period)))
    return max(1, allowed)


def memory_bytes(root: Path = _ROOT, cgroup: Path = _CGROUP) -> int:
    """Return the bytes of memory that the machine has, or a cgroup of this process grants. Arguments as above."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(int(limit) for limit in _read(root, cgroup, "memory.max") if limit.isdecimal())])


def _read(root: Path, cgroup: Path, name: str) -> Iterator[str]:
    try:
        lines = cgroup.read_text("utf-8").splitlines()
    except OSError:
        lines = []
    lowest = root / next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "/").lstrip("/")
    for folder in (lowest, *lowest.parents):  # in a container, the path may be the host's: its end is not there
        if folder.is_relative_to(root):
            try:
                yield (folder / name).read_text("ascii").strip()
            except (OSError, ValueError):
                continue
