"""What the kernel knows about this process' memory."""

import re
from pathlib import Path

__all__ = ["mapped_bytes", "resident_bytes"]


def mapped_bytes(path: Path) -> tuple[int, int]:
    """Mapped and resident bytes of a file in this process, from the kernel's own account."""
    size = resident = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if re.match(r"^[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Size:"):
            size += int(line.split()[1]) * 1024
        elif inside and line.startswith("Rss:"):
            resident += int(line.split()[1]) * 1024
    return size, resident


def resident_bytes() -> int:
    """What this process holds in memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(dict(line.split(":", 1) for line in status.splitlines())["VmRSS"].split()[0]) * 1024
