"""What the system and the cgroup grant this process: processors and memory."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["memory_bytes", "processors"]

_ROOT: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


def processors(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return the number of processors that the system and the cgroups grant this process, at least 1. A part of a
    processor counts as a whole one. The least of the affinity of the process and of the quotas of its cgroup and those
    above it, of version 2 or 1, counts. `root` is where cgroups are mounted, `own` names the process's."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = list(_read(root, own, "", "cpu.max"))
    for quota, period in zip(
        _read(root, own, "cpu", "cpu.cfs_quota_us"), _read(root, own, "cpu", "cpu.cfs_period_us"), strict=False
    ):
        quotas.append(f"{quota} {period}")
    for quota in quotas:
        granted, _, period = quota.partition(" ")
        if granted.isdecimal() and period.isdecimal() and int(period):  # not "max" or -1
            allowed = min(allowed, -(-int(granted) // int(period)))
    return max(1, allowed)


def memory_bytes(root: Path = _ROOT, own: Path = _OWN) -> int:
    """Return the bytes of memory that the machine has, or a cgroup of this process grants. Arguments as above."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [*_read(root, own, "", "memory.max"), *_read(root, own, "memory", "memory.limit_in_bytes")]
    return min([machine, *(int(limit) for limit in limits if limit.isdecimal())])


def _read(root: Path, own: Path, controller: str, name: str) -> Iterator[str]:
    """Read a file of the process's cgroup and of all above it, from the lowest up: of the hierarchy of a controller
    (version 1), or of all controllers (version 2, "")."""
    try:
        lines = own.read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.split(":", 2) for line in lines if line.count(":") > 1)
    base = root / controller
    lowest = base / next((path for _, those, path in named if controller in those.split(",")), "/").lstrip("/")
    for folder in (lowest, *lowest.parents):  # in a container, the path may be the host's: its end is not there
        if folder.is_relative_to(base):
            try:
                yield (folder / name).read_text("ascii").strip()
            except (OSError, ValueError):
                continue
