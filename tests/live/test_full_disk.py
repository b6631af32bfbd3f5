"""A journal on a full disk: writes are 507 and leave nothing, searches go on, and so do writes when there is room."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import DiskError, JavaError
from lightretriever.artifacts.live.documents import Change, read_fields
from lightretriever.artifacts.live.journal import Journal
from lightretriever.artifacts.live.overlay import Overlay, Snapshot
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.machine import full_disk, small_disk
from tests.support.waiting import wait_until
from tests.support.written import changeable

UNIT = np.full(16, 0.25, np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 24 MB; on the disk of all tests where none may be mounted."""
    with small_disk(tmp_path / "disk", "24m"):
        yield tmp_path / "disk" / "live"


def opened(bundle: Bundle, folder: Path) -> SearchEngine:
    return SearchEngine.open(bundle, Settings(live=folder, deadline_ms=60_000, warm_up_queries=1))


def write(engine: SearchEngine, number: int, size: int = 2_000) -> None:
    """Write a document with a text of `size` random characters."""
    text = f"zebra {np.random.default_rng(number).bytes(size // 2).hex()}"
    document = read_fields(f"z-{number}", {"title": "Zebra", "text": text}, engine.bundle.manifest)
    result = changeable(engine).write([Change(document.id, document, UNIT, {"0": 1 + number % 300})], soon())[0]
    if isinstance(result, Exception):
        raise result


def write_some(engine: SearchEngine, folder: Path) -> None:
    """Write five documents, where the folder is on a disk of its own."""
    if not os.path.ismount(folder.parent):
        pytest.xfail("no file system may be mounted here; the other tests of this file have run")
    for number in range(5):
        write(engine, number)


def soon() -> float:
    return perf_counter() + 60


def searched(engine: SearchEngine) -> set[str]:
    """The written documents that the dense leg finds."""
    hits = engine.search(SearchRequest(query="music", mode="dense", k=1000, candidates=1000)).hits
    return {hit.id for hit in hits if hit.id.startswith("z-")}


@pytest.mark.parametrize("left", [0, 20_000, 100_000, 300_000, 1_200_000])
def test_a_full_disk_refuses_writes_until_there_is_room(tiny_bundle: Bundle, folder: Path, left: int) -> None:
    with opened(tiny_bundle, folder) as engine:
        write_some(engine, folder)
        disk, rest = os.statvfs(folder), folder.parent / "rest"
        rest.write_bytes(bytes(disk.f_bavail * disk.f_frsize - left))
        acknowledged, refused = set(range(5)), set[int]()
        for number in range(5, 25):
            try:
                write(engine, number, size=100_000)
                acknowledged.add(number)
            except DiskError as error:
                assert "Look at free space" in str(error)  # noqa: PT017
                refused.add(number)
            assert searched(engine) == {f"z-{one}" for one in acknowledged}
            assert changeable(engine).problem is None
        assert refused
        rest.unlink()
        write(engine, 100)
        assert searched(engine) == {f"z-{one}" for one in acknowledged | {100}}
    with opened(tiny_bundle, folder) as engine:
        assert searched(engine) == {f"z-{one}" for one in acknowledged | {100}}


def test_a_full_disk_hinders_no_stop_and_is_told_at_the_start(tiny_bundle: Bundle, folder: Path) -> None:
    rest = folder.parent / "rest"
    with opened(tiny_bundle, folder) as engine:
        write_some(engine, folder)
        disk = os.statvfs(folder)
        rest.write_bytes(bytes(disk.f_bavail * disk.f_frsize))
    with pytest.raises(DiskError, match="Look at free space and permissions, and run"):
        opened(tiny_bundle, folder)
    rest.unlink()
    with opened(tiny_bundle, folder) as engine:
        assert searched(engine) == {f"z-{number}" for number in range(5)}


@pytest.mark.parametrize("fails", ["apply", "prepare"])
def test_a_change_that_the_index_has_no_room_for_is_not_in_the_journal(
    tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Lucene fails at any call; another process, which finds the change in the journal, catches up later."""
    with opened(tiny_bundle, tmp_path / "live") as engine, opened(tiny_bundle, tmp_path / "live") as other:
        for number in range(5):
            write(engine, number)
        wait_until(lambda: len(searched(other)) == 5)
        broken, method = True, getattr(Overlay, fails)

        def failing(overlay: Overlay, *arguments: object) -> Snapshot | None:
            if broken and overlay.changed:
                raise JavaError("IOException: No space left on device")
            result: Snapshot | None = method(overlay, *arguments)
            return result

        monkeypatch.setattr(Overlay, fails, failing)
        with pytest.raises(DiskError, match="No space left"):
            write(engine, 5)
        for one in (engine, other):
            assert searched(one) == {f"z-{number}" for number in range(5)}
            assert changeable(one).problem is None
        with Journal(tmp_path / "live", tiny_bundle.manifest) as journal:
            assert len(journal.read()) == 5
        broken = False
        write(engine, 6)
        broken = True
        wait_until(lambda: changeable(other).warning is not None or "z-6" in searched(other))
        broken = False
        wait_until(lambda: "z-6" in searched(other))
        assert searched(other) == searched(engine) == {f"z-{number}" for number in (*range(5), 6)}


def test_a_commit_that_fails_is_not_searched(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with opened(tiny_bundle, tmp_path / "live") as engine:
        write(engine, 0)
        size = (tmp_path / "live" / "journal.sqlite-wal").stat().st_size
        with full_disk(size + 10):
            for number in range(1, 4):
                with pytest.raises(DiskError, match=r"journal\.sqlite can't be written: .*Look at free space"):
                    write(engine, number)
                assert searched(engine) == {"z-0"}
        write(engine, 4)
        assert searched(engine) == {"z-0", "z-4"}
        stored = changeable(engine).get("z-4", soon())
        assert stored is not None
        assert json.loads(stored.raw)["_id"] == "z-4"
