"""Reading a bundle's files once before the first request, so that none of them waits for the disk.

Tables and indexes are memory-mapped: the first search that touches a page reads it from the disk. Read through at
start, they lie in the system's page cache, which all processes share. Stored documents are left to their first use:
they are the largest file, and a search touches ten of them.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = ["free_memory", "preload"]

_log = logging.getLogger(__name__)

_CHUNK: Final = 8 << 20
_DOCUMENTS: Final = ".fdt"
_SHARE: Final = 0.5
"""How much of the free memory may be filled."""

_MEMINFO: Final = Path("/proc/meminfo")
_CGROUP: Final = Path("/sys/fs/cgroup")


def preload(folder: Path, sizes: dict[str, int], stopped: Callable[[], bool], free: int | None = None) -> list[str]:
    """Read the files of a bundle, by name with their bytes, as far as they fit into half of the free memory.

    Smaller ones come first. `free` is in bytes, default what the system says. Gives the names of the files read; a file
    that can't be read is left to whoever opens it, who has the error to tell.
    """
    room = int(_SHARE * (free_memory() if free is None else free))
    done: list[str] = []
    wanted = sorted((size, name) for name, size in sizes.items() if not name.endswith(_DOCUMENTS))
    for size, name in wanted:
        room -= size
        if room < 0:
            _log.info("not read ahead: memory is short", extra={"files": [name for _, name in wanted[len(done) :]]})
            break
        if not _read(folder / name, stopped):
            break
        done.append(name)
    return done


def free_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Bytes that this process may fill: the system's, and where a container has a limit, what is left of that.

    0 where the system does not say.
    """
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text("ascii").splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0
    try:
        limit, used = (int((cgroup / f"memory.{name}").read_text("ascii")) for name in ("max", "current"))
    except (OSError, ValueError):  # no container, or one without a limit, whose file says "max"
        return free
    return min(free, limit - used)


def _read(file: Path, stopped: Callable[[], bool]) -> bool:
    """Read a file to its end; False when told to stop."""
    buffer = bytearray(_CHUNK)
    try:
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                if stopped():
                    return False
    except OSError:
        _log.warning("not read ahead", extra={"files": [file.name]}, exc_info=True)
    return True
