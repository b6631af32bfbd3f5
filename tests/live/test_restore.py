"""Copies of a journal: what doesn't belong together is refused, `restore` puts a copy in place, versions are new."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import JournalError
from lightretriever.artifacts.live import journal as journals
from lightretriever.artifacts.live.compact import compact
from lightretriever.artifacts.live.documents import Change
from lightretriever.artifacts.live.journal import Journal, restore
from lightretriever.service.client import AnswerError
from lightretriever.service.search.engine import SearchEngine
from lightretriever.service.settings import Settings
from tests.live.test_journal import append, replayed, same
from tests.support.commands import run, summary_of
from tests.support.keys import keys_file
from tests.support.tiny import make_tiny_bundle
from tests.support.written import ENTRIES, NEW, VECTOR, changeable, impacts_of, opened


def backup(database: Path, copy: Path) -> None:
    with closing(sqlite3.connect(database)) as one, closing(sqlite3.connect(copy)) as other:
        one.backup(other)


def vacuum(database: Path, copy: Path) -> None:
    with closing(sqlite3.connect(database)) as one:
        one.execute("VACUUM INTO ?", (str(copy),))


def closed(database: Path, copy: Path) -> None:
    """Copy the file as it is when no process has it open."""
    shutil.copytree(database.parent, copy.parent / "open")
    with closing(sqlite3.connect(copy.parent / "open" / database.name)) as last:
        last.execute("SELECT count(*) FROM changes").fetchall()
    (copy.parent / "open" / database.name).rename(copy)


def overwrite(copy: Path, database: Path) -> None:
    database.write_bytes(copy.read_bytes())


def replace(copy: Path, database: Path) -> None:
    shutil.copy2(copy, database.with_suffix(".tmp"))
    database.with_suffix(".tmp").replace(database)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the log back after a few changes."""
    monkeypatch.setattr(journals, "_LOG_BYTES", 40_000)


@pytest.mark.parametrize("copied", [backup, vacuum, closed])
@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 40), (20, 1), (20, 40)])
def test_a_copy_beside_the_log_of_another_is_refused_and_restored_by_the_command(
    tiny_bundle: Bundle, tmp_path: Path, copied: Callable[[Path, Path], None], before: int, after: int
) -> None:
    with Journal(tmp_path / "live", tiny_bundle.manifest) as journal:
        append(journal, [0, 1], *([number] for number in range(2, 2 + before)))
        copied(tmp_path / "live" / "journal.sqlite", tmp_path / "copy")
        append(journal, *([number] for number in range(100, 100 + after)))
        shutil.copytree(tmp_path / "live", tmp_path / "killed")
    shutil.copytree(tmp_path / "killed", tmp_path / "whole")
    assert len(replayed(tmp_path / "whole", tiny_bundle)) == 2 + before + after
    overwrite(tmp_path / "copy", tmp_path / "killed" / "journal.sqlite")
    with pytest.raises(JournalError, match=r"it was replaced, but journal.sqlite-wal and journal.sqlite-shm beside it"):
        Journal(tmp_path / "killed", tiny_bundle.manifest)
    summary = summary_of("restore", tmp_path / "copy", "--live", tmp_path / "killed")
    assert summary["position"] == 2 + before
    assert sorted(path.name for path in Path(summary["kept"]).iterdir()) == [
        *("journal.sqlite", "journal.sqlite-shm", "journal.sqlite-wal", "journal.sqlite.stamp")
    ]
    assert same(replayed(tmp_path / "killed", tiny_bundle), range(2 + before))


def test_a_folder_that_was_copied_without_its_times_is_restored_from_itself(
    tiny_bundle: Bundle, tmp_path: Path
) -> None:
    with Journal(tmp_path / "live", tiny_bundle.manifest) as journal:
        append(journal, *([number] for number in range(30)))
        shutil.copytree(tmp_path / "live", tmp_path / "copied")
    os.utime(tmp_path / "copied" / "journal.sqlite")
    with pytest.raises(JournalError):
        Journal(tmp_path / "copied", tiny_bundle.manifest)
    assert restore(tmp_path / "copied" / "journal.sqlite", tmp_path / "copied")[0] == 30
    assert same(replayed(tmp_path / "copied", tiny_bundle), range(30))


@pytest.mark.parametrize("lay", [overwrite, replace])
def test_a_copy_laid_over_a_journal_in_use_is_noticed(
    tiny_bundle: Bundle, tmp_path: Path, lay: Callable[[Path, Path], None]
) -> None:
    folder = tmp_path / "live"
    with Journal(folder, tiny_bundle.manifest) as journal:
        append(journal, [0])
        backup(folder / "journal.sqlite", tmp_path / "copy")
        append(journal, [1])
        lay(tmp_path / "copy", folder / "journal.sqlite")
        with pytest.raises(JournalError, match="replaced while in use"):
            append(journal, [2])
    with pytest.raises(JournalError, match="replaced"):
        Journal(folder, tiny_bundle.manifest)
    restore(tmp_path / "copy", folder)
    assert same(replayed(folder, tiny_bundle), [0])
    with Journal(folder, tiny_bundle.manifest) as journal:
        shutil.rmtree(folder)
        with pytest.raises(JournalError, match="removed while in use"):
            append(journal, [2])


@pytest.mark.parametrize("size", [0, 1, 511, None])
@pytest.mark.parametrize("sign", ["journal.sqlite.stamp", "lock", "journal.sqlite-wal", "7.x.checkpoint", "x.follower"])
def test_a_lost_journal_is_not_begun_anew(tiny_bundle: Bundle, tmp_path: Path, sign: str, size: int | None) -> None:
    """Also where one file alone says that there was one; an empty folder gets one."""
    (tmp_path / sign).write_bytes(b"")
    if size is not None:
        (tmp_path / "journal.sqlite").write_bytes(bytes(size))
    with pytest.raises(JournalError, match=r"its changes are lost. `lightretriever restore COPY --live DIR`"):
        Journal(tmp_path, tiny_bundle.manifest)
    assert {path.name for path in tmp_path.iterdir()} == {sign, *(() if size is None else ("journal.sqlite",))}


@pytest.mark.parametrize("name", ["journal.new", "journal.sqlite.bak", "copy"])
def test_a_journal_of_another_name_is_not_begun_anew(tiny_bundle: Bundle, tmp_path: Path, name: str) -> None:
    with Journal(tmp_path, tiny_bundle.manifest) as journal:
        append(journal, [0, 1])
    (tmp_path / "journal.sqlite.stamp").unlink()
    (tmp_path / "journal.sqlite").rename(tmp_path / name)
    (tmp_path / "journal.sqlite.begun").write_bytes((tmp_path / name).read_bytes())  # of a start that was killed
    with pytest.raises(JournalError, match=rf"it is missing beside {name}, so its changes are lost"):
        Journal(tmp_path, tiny_bundle.manifest)
    restore(tmp_path / name, tmp_path)
    assert same(replayed(tmp_path, tiny_bundle), [0, 1])
    (tmp_path / "journal.sqlite").unlink()
    (tmp_path / "journal.sqlite.stamp").unlink()
    (tmp_path / name).unlink()
    assert replayed(tmp_path, tiny_bundle) == []


@pytest.mark.parametrize("name", ["journal.sqlite", "journal.sqlite.stamp", "journal.sqlite-wal", "journal.sqlite-shm"])
def test_a_pipe_in_the_folder_is_told(tiny_bundle: Bundle, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(JournalError, match=f"{name}: it is no regular file"):
        Journal(tmp_path, tiny_bundle.manifest)


def test_what_can_not_be_restored_leaves_the_folder_as_it_is(tiny_bundle: Bundle, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    with Journal(folder, tiny_bundle.manifest) as journal:
        append(journal, *([number] for number in range(20)))
        backup(folder / "journal.sqlite", tmp_path / "copy")
    content = (tmp_path / "copy").read_bytes()
    other = sqlite3.connect(tmp_path / "other")
    other.executescript("CREATE TABLE a (b); INSERT INTO a VALUES (1)")
    other.close()
    damaged = bytearray(content)
    damaged[content.index(b"id-7")] ^= 1
    for name, bad in (("empty", b""), ("tiny", b"x"), ("text", 999 * b"x"), ("cut", content[:9000]), ("bit", damaged)):
        (tmp_path / name).write_bytes(bad)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in ("none", "live", "empty", "tiny", "text", "cut", "bit", "other"):
        with pytest.raises(JournalError):
            run("restore", tmp_path / name, "--live", folder)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, name
    settings, used = Settings(live=folder, deadline_ms=60_000, warm_up_queries=1), "a process has the journal open"
    with SearchEngine.open(tiny_bundle, settings), pytest.raises(JournalError, match=used):
        run("restore", tmp_path / "copy", "--live", folder)


def test_versions_never_come_again_after_a_restore(tmp_path: Path) -> None:
    bundle = make_tiny_bundle(tmp_path / "tiny", vocabulary="words", fields={"year": "number"})
    live, copy = tmp_path / "live", tmp_path / "copy"
    settings = Settings(live=live, api_keys_file=keys_file(tmp_path, *ENTRIES), deadline_ms=60_000, warm_up_queries=1)
    with SearchEngine.open(bundle, settings.model_copy(update={"live": None})) as engine:
        encoded: dict[str, Any] = {"vector": VECTOR, "impacts": impacts_of(engine, "zebra")}

    with opened(bundle, settings) as client:
        first = client.put_document("d", NEW, **encoded)
        backup(live / "journal.sqlite", copy)
        old = client.put_document("d", {**NEW, "year": 2}, **encoded)
    compacted, _ = compact(bundle, live, tmp_path / "compacted")
    with opened(bundle, settings) as client:
        assert client.document("d").version == old.version  # a start alone changes none
    for _ in range(2):  # the second time from the same copy
        restore(copy, live)
        with opened(bundle, settings) as client:
            assert client.document("d").version == first.version
            new = client.put_document("d", {**NEW, "year": 2}, **encoded)  # the same change, and the same number
            assert new.version != old.version
            assert f"{new.version}".partition(".")[0] == f"{old.version}".partition(".")[0]
            for version in (first.version, old.version):
                with pytest.raises(AnswerError) as error:
                    client.put_document("d", {**NEW, "year": 4}, version=version)
                assert (error.value.status, error.value.kind) == (412, "version_conflict")
            assert client.document("d").version == new.version
        old = new
    with pytest.raises(JournalError, match="the journal was restored, and the bundle has changes that are not in it"):
        SearchEngine.open(compacted, settings)


def test_a_journal_without_the_log_of_a_killed_process_is_refused(tiny_bundle: Bundle, tmp_path: Path) -> None:
    """The folder of the process says how far it had come."""
    settings, folder = Settings(live=tmp_path / "live", deadline_ms=60_000, warm_up_queries=1), tmp_path / "killed"
    with SearchEngine.open(tiny_bundle, settings) as engine:
        changeable(engine).write([Change("music")], perf_counter() + 60)
        shutil.copytree(tmp_path / "live", folder)
    for name in ("journal.sqlite-wal", "journal.sqlite-shm"):
        (folder / name).unlink()
    killed = settings.model_copy(update={"live": folder})
    (folder / "7.x.checkpoint").mkdir()  # of a former version
    for _ in range(2):
        with pytest.raises(JournalError, match="the journal ends with change 0, but change 1 was acknowledged"):
            SearchEngine.open(tiny_bundle, killed)
    restore(folder / "journal.sqlite", folder)
    SearchEngine.open(tiny_bundle, killed).close()
    assert not list(folder.glob("*.checkpoint"))
