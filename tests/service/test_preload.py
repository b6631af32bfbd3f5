"""Files are read before the first request: all that fit, and none that is of no use then."""

from pathlib import Path

import pytest

from artifacts.bundle import Bundle
from service.preload import free_memory, preload

MUCH = 1 << 40


def never() -> bool:
    return False


def read_so_far() -> int:
    """Bytes that this process has read, from the page cache too."""
    io = dict(line.split(": ") for line in Path("/proc/self/io").read_text("ascii").splitlines())
    return int(io["rchar"])


def test_everything_but_the_documents_is_read(tiny_bundle: Bundle) -> None:
    sizes = {name: file.bytes for name, file in tiny_bundle.manifest.files.items()}
    documents = [name for name in sizes if name.endswith(".fdt")]
    before = read_so_far()
    done = preload(tiny_bundle.path, sizes, never, MUCH)
    assert read_so_far() - before >= sum(sizes[name] for name in done)
    assert len(documents) == 1
    assert {*done, *documents} == {*sizes}


def test_memory_bounds_it_and_small_files_come_first(tmp_path: Path) -> None:
    sizes = {"large": 50, "small": 10, "middle": 30}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    assert preload(tmp_path, sizes, never, 0) == []
    assert preload(tmp_path, sizes, never, 79) == ["small"]
    assert preload(tmp_path, sizes, never, 80) == ["small", "middle"]
    assert preload(tmp_path, sizes, never, 180) == ["small", "middle", "large"]


def test_it_stops_when_told(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(10))
    assert preload(tmp_path, {"one": 10}, lambda: True, MUCH) == []


def test_a_file_that_is_gone_is_left_to_who_opens_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "there").write_bytes(bytes(10))
    preload(tmp_path, {"gone": 5, "there": 10}, never, MUCH)
    assert [record.message for record in caplog.records] == ["not read ahead"]


@pytest.mark.parametrize(
    ("limit", "used", "free"), [("max", "5", 2048), ("1500", "500", 1000), ("1000000", "1", 2048), (None, None, 2048)]
)
def test_free_memory_is_the_systems_or_what_the_container_has_left(
    tmp_path: Path, limit: str | None, used: str | None, free: int
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       9 kB\nMemAvailable:       2 kB\n")
    if limit is not None and used is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
    assert free_memory(meminfo, tmp_path) == free


def test_a_system_that_does_not_say_has_no_free_memory(tmp_path: Path) -> None:
    assert free_memory(tmp_path / "none", tmp_path) == 0
    assert free_memory() > 0
