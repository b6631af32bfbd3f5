"""What a process has of its machine: memory, threads, files, a disk that is full, and Java."""

import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Variables of the environment of a process with a JVM: Java without its second compiler, as tests end before its work
#: pays. None where figures are recorded, which are of Java as it is.
QUICK_JAVA = {} if "--record-faults" in sys.argv else {"_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}


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


@contextmanager
def full_disk(file_bytes: int) -> Iterator[None]:
    """Limit the files that this process writes to so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[bool]:
    """A file system of its own at a folder; false where none may be mounted."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
