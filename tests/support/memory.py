"""Memory, threads and open files of processes, read from the kernel."""

import re
from dataclasses import dataclass
from pathlib import Path


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


@dataclass(frozen=True)
class Held:
    """Memory, threads and files of a process; `mapped` counts the lines of its memory map that name a folder."""

    descriptors: int
    threads: int
    resident_mb: float
    mapped: int


def held(pid: int, folder: Path = Path("/")) -> Held:
    """Read memory, threads and files of a process, and count its mapped files in a folder."""
    process = Path(f"/proc/{pid}")
    lines = (process / "status").read_text("ascii").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return Held(
        descriptors=len(list((process / "fd").iterdir())),
        threads=int(status["Threads"]),
        resident_mb=int(status["VmRSS"].split()[0]) / 1024,
        mapped=(process / "maps").read_text("utf-8").count(str(folder)),
    )
