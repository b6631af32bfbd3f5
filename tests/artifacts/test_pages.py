"""Files in the page cache: read ahead of those who need them, and in huge pages if the system likes."""

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from lightretriever.artifacts.files.page_cache import Ahead, forget_pages, huge_memory

ROOT = Path(__file__).parents[2]

MEGABYTE = 2**20


def resident(path: Path) -> float:
    """The share of a file's pages that lie in the page cache."""
    mapped = np.memmap(path, np.uint8, "r")
    found = np.zeros(-(-mapped.size // mmap.PAGESIZE), np.uint8)
    mincore = ctypes.CDLL(None).mincore
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert mincore(mapped.ctypes.data, mapped.size, found.ctypes.data) == 0
    return float((found & 1).mean())


def test_what_is_brought_lies_in_the_page_cache(tmp_path: Path) -> None:
    file = tmp_path / "some"
    content = os.urandom(9 * MEGABYTE + 5)
    with file.open("wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
        forget_pages(written.fileno())
    ahead = Ahead(file)
    for start in range(0, len(content) + 2 * MEGABYTE, MEGABYTE + 1):
        ahead.bring(start, MEGABYTE + 1)
    if os.uname().sysname == "Linux" and tuple(map(int, os.uname().release.split(".")[:2])) >= (5, 14):
        assert resident(file) == 1
    assert file.read_bytes() == content


@pytest.mark.parametrize("size", [0, 1, mmap.PAGESIZE])
def test_small_files(tmp_path: Path, size: int) -> None:
    (tmp_path / "some").write_bytes(b"x" * size)
    for start in (0, 1, mmap.PAGESIZE, MEGABYTE):
        Ahead(tmp_path / "some").bring(start, MEGABYTE)
    assert (tmp_path / "some").read_bytes() == b"x" * size


def test_what_can_not_be_read_is_left_to_who_reads_it(tmp_path: Path) -> None:
    Ahead(tmp_path / "none").bring(0, 1)
    Ahead(tmp_path).bring(0, 1)


def test_the_tokenizer_leaves_huge_pages_as_they_were() -> None:
    told = "print(*(line for line in open('/proc/self/status') if line.startswith('THP_enabled')), sep='')"
    for off in (0, 1):
        before = f"import ctypes; ctypes.CDLL(None).prctl(41, {off}, 0, 0, 0)\n"
        lines = [
            subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True).stdout
            for script in (before + told, before + "import artifacts.fast_tokens\n" + told)
        ]
        assert lines[0] == lines[1]
        assert "THP_enabled" in lines[0]


@pytest.mark.parametrize("size", [1, 4096, 5 << 20])
def test_memory_in_huge_pages_is_there_to_be_written(size: int) -> None:
    memory = huge_memory(size)
    assert memory.shape == (size,)
    assert not memory.any()
    memory[:] = 7
    assert memory.min() == 7
    if sys.platform == "linux":
        assert memory.ctypes.data % (2 << 20) == 0
