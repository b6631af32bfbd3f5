"""Checkpoints: a start reads the newest, and whatever is wrong with it, no change is lost or invented."""

import logging
import shutil
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import JournalError
from lightretriever.artifacts.live.documents import Change, read_fields
from lightretriever.artifacts.live.restore import restore
from lightretriever.artifacts.live.store import LiveStore
from lightretriever.service.schemas import SearchRequest
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.support.tiny import make_tiny_bundle
from tests.support.waiting import wait_until

LEAST = 20  # changes that a checkpoint pays for here


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_tiny_bundle(tmp_path_factory.mktemp("checkpoint") / "tiny", vocabulary="words", documents=40)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.artifacts.live.store._MIN_SAVED", LEAST)


def opened(bundle: Bundle, folder: Path) -> SearchEngine:
    return SearchEngine.open(bundle, Settings(live=folder, deadline_ms=60_000, warm_up_queries=1))


def store_of(engine: SearchEngine) -> LiveStore:
    live = engine.parts.backends.live
    assert isinstance(live, LiveStore)
    return live


def write(engine: SearchEngine, numbers: range, version: int = 0) -> None:
    """Write documents of these numbers, and delete the one of every fifth again."""
    vectors = np.random.default_rng(version).standard_normal((1000, 16)).astype(np.float32)
    changes = []
    for number in numbers:
        fields = {"title": f"zebra {number}", "text": f"Version {version} of the zebra number {number}."}
        document = read_fields(f"z-{number}", fields, engine.bundle.manifest)
        unit = vectors[number] / np.linalg.norm(vectors[number])
        changes.append(Change(document.id, document, unit, {"zebra": number + 1, f"n{number}": 3 + version}))
        if number % 5 == 4:
            changes.append(Change(document.id))
    ids = [f"doc-{number}" for number in numbers if number % 7 == 0]
    store_of(engine).write(changes + [Change(one) for one in ids], perf_counter() + 60)


def facts(engine: SearchEngine) -> list[object]:
    """What searches find, each hit with its scores and its document's version."""
    found: list[object] = []
    for query in ("zebra", "n7 zebra number", "music from the terminal"):
        hits = engine.search(SearchRequest(query=query, k=100, candidates=1000)).hits
        found.append([(hit.id, hit.score, hit.dense, hit.sparse) for hit in hits])
    live = store_of(engine)
    stored = [live.get(f"z-{number}") for number in range(120)]
    return [*found, [one and (one.raw, one.version) for one in stored], live.written]


def only_checkpoint(folder: Path) -> Path:
    (found,) = folder.glob("*.checkpoint")
    return found


def replayed(bundle: Bundle, folder: Path, copy: Path) -> list[object]:
    """What searches find when the whole journal of a folder is replayed."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.checkpoint", "*.follower"))
    with opened(bundle, copy) as engine:
        return facts(engine)


def test_a_start_with_a_checkpoint_finds_what_a_whole_replay_finds(bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with opened(bundle, folder) as engine:
        write(engine, range(50))
        write(engine, range(10, 40), version=1)  # enough for another one, whenever the first was written
        before = facts(engine)
    first = only_checkpoint(folder)
    with opened(bundle, folder) as engine:
        assert facts(engine) == before
        assert only_checkpoint(folder) == first
        write(engine, range(45, 60), version=2)  # fewer than a checkpoint pays for
        before = facts(engine)
    assert only_checkpoint(folder) == first
    assert not list(folder.glob("*.follower"))
    with opened(bundle, folder) as engine:
        assert facts(engine) == before
        write(engine, range(60, 100))
        write(engine, range(30), version=3)
        before = facts(engine)
    assert only_checkpoint(folder) != first
    with opened(bundle, folder) as engine, opened(bundle, folder) as other:
        assert facts(engine) == facts(other) == before
        write(engine, range(100, 110))
    assert replayed(bundle, folder, tmp_path / "copy")[:3] != before[:3]


def test_a_checkpoint_is_written_while_the_service_runs(bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with opened(bundle, folder) as engine:
        write(engine, range(50))
        wait_until(lambda: bool(list(folder.glob("*.checkpoint"))))
        write(engine, range(50, 55))
        before = facts(engine)
        shutil.copytree(folder, tmp_path / "killed")  # as kill -9 leaves it, with the folder of a process
    with opened(bundle, tmp_path / "killed") as engine:
        assert facts(engine) == before
        assert len(list((tmp_path / "killed").glob("*.follower"))) == 1


@pytest.mark.parametrize("how", ["changed", "cut", "missing", "empty"])
def test_a_damaged_checkpoint_is_removed_and_the_journal_replayed(
    bundle: Bundle, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "live"
    with opened(bundle, folder) as engine:
        write(engine, range(50))
        before = facts(engine)
    files = list(only_checkpoint(folder).iterdir())
    damaged = max(files, key=lambda file: file.stat().st_size)
    content = bytearray(damaged.read_bytes())
    for file in files if how == "empty" else [damaged]:
        file.unlink()
    if how in ("changed", "cut"):
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content if how == "changed" else content[: len(content) // 2])
    with caplog.at_level(logging.WARNING), opened(bundle, folder) as engine:
        assert facts(engine) == before
    assert "checkpoint removed, so the whole journal is replayed" in caplog.text


def test_a_journal_without_the_log_of_a_killed_process_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    """The folder of the process says how far it had come."""
    folder = tmp_path / "killed"
    with opened(bundle, tmp_path / "live") as engine:
        write(engine, range(4))
        shutil.copytree(tmp_path / "live", folder)
    for name in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (folder / name).unlink()
    for _ in range(2):
        with pytest.raises(JournalError, match="the journal ends with change 0, but change 4 was acknowledged"):
            opened(bundle, folder)
    restore(folder / "journal.sqlite", folder)
    with opened(bundle, folder) as engine:
        assert store_of(engine).get("z-0") is None


def test_a_checkpoint_of_another_bundle_is_not_read(bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with opened(bundle, folder) as engine:
        write(engine, range(50))
    other = make_tiny_bundle(tmp_path / "other", vocabulary="words", documents=30)
    expected = replayed(other, folder, tmp_path / "copy")
    with opened(other, folder) as engine:
        assert facts(engine) == expected
