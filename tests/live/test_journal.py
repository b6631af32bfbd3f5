"""The journal: what is acknowledged is there, what was not written whole is not, and damage is refused."""

import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from time import perf_counter
from typing import Final

import numpy as np
import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import BundleError, DiskError, JournalError
from lightretriever.artifacts.live.journal import Journal, Record, restore
from tests.support.tiny import make_tiny_bundle
from tests.support.wordings import raises

SOON = 60.0


def record(number: int) -> Record:
    drawn = np.random.default_rng(number).standard_normal(16).astype(np.float32)
    vector = drawn / np.linalg.norm(drawn)
    return Record(
        f"id-{number}", f'{{"_id": "id-{number}", "text": "ü{number}"}}'.encode(), vector, {"word": number + 1}
    )


def same(found: list[Record], numbers: range | list[int]) -> bool:
    expected = [record(number) for number in numbers]
    return [(one.id, one.raw, dict(one.impacts), one.vector.tolist()) for one in found if one.vector is not None] == [
        (one.id, one.raw, dict(one.impacts), one.vector.tolist()) for one in expected if one.vector is not None
    ]


def append(journal: Journal, *groups: list[int]) -> list[Record]:
    """Append records, each group at once; give what others had appended before."""
    with journal.writing(perf_counter() + SOON) as missed:
        for group in groups:
            with journal.appending([record(number) for number in group]):
                pass
        return missed


def replayed(folder: Path, bundle: Bundle) -> list[Record]:
    with Journal(folder, bundle.manifest) as journal, journal.writing(perf_counter() + SOON) as found:
        return found


FORKED = """
import os, sys
from pathlib import Path
from time import perf_counter
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import JournalError
from lightretriever.artifacts.live.journal import Journal, Record
journal = Journal(Path(sys.argv[1]), Bundle.open(Path(sys.argv[2])).manifest)
def write():
    with journal.writing(perf_counter() + 60), journal.appending([Record("a")]):
        pass
write()
child = os.fork()
if child == 0:
    for call in (write, journal.read):
        try:
            call()
            os._exit(8)
        except JournalError as error:
            if "another process" not in str(error):
                os._exit(9)
    journal.close()
    os._exit(7)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
write()
print(status, journal.sequence)
journal.close()
"""


def test_a_forked_process_does_not_write_with_its_parents_locks(tiny_bundle: Bundle, tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKED, str(tmp_path), str(tiny_bundle.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("7 2\n", "")


READS: Final = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM changes').fetchall()"
WRITES: Final = """
import sys
from pathlib import Path
from lightretriever.artifacts.live.journal import Journal, Record
with Journal(Path(sys.argv[1]).parent, None) as journal, journal.writing(1e9), journal.appending([Record("a")]):
    pass
"""


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("other", [READS, WRITES])
def test_a_process_that_ends_leaves_the_log_to_those_that_go_on(
    tiny_bundle: Bundle, tmp_path: Path, other: str, beside: bool
) -> None:
    """The last connection to a database removes its log; another journal of this process, too, is not the last."""
    with Journal(tmp_path / "live", tiny_bundle.manifest) as journal:
        append(journal, [0])
        if beside:
            replayed(tmp_path / "live", tiny_bundle)
        subprocess.run([sys.executable, "-c", other, tmp_path / "live" / "journal.sqlite"], check=True, timeout=120)
        append(journal, [1])
        subprocess.run(["cp", "-a", tmp_path / "live", tmp_path / "killed"], check=True)
    assert same(replayed(tmp_path / "killed", tiny_bundle), [0, 1])


@pytest.mark.parametrize("name", ["journal.sqlite-wal", "journal.sqlite-shm"])
def test_a_log_that_was_removed_is_told(tiny_bundle: Bundle, tmp_path: Path, name: str) -> None:
    with Journal(tmp_path, tiny_bundle.manifest) as journal:
        append(journal, [0])
        (tmp_path / name).unlink()
        with pytest.raises(JournalError, match=rf"{name}: it was removed while in use\. Stop the service"):
            append(journal, [1])
    with pytest.raises(JournalError):
        Journal(tmp_path, tiny_bundle.manifest)
    restore(tmp_path / "journal.sqlite", tmp_path)
    assert same(replayed(tmp_path, tiny_bundle), [0])


def test_readers_follow_writers(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with Journal(tmp_path, tiny_bundle.manifest) as one, Journal(tmp_path, tiny_bundle.manifest) as two:
        append(one, [0], [1])
        assert same(two.read(1), [0])
        assert same(two.read(1), [1])
        assert append(two, [2]) == []
        assert same(append(one, [3]), [2])
        assert same(two.read(), [3])
        with two.writing(perf_counter() + SOON):
            two.drop(4)
        append(one, [4])
        assert same(two.read(), [4])
        assert (one.sequence, two.sequence) == (5, 5)
        with one.writing(perf_counter() + SOON):
            one.drop(5)
    with raises(JournalError):
        Journal(tmp_path, tiny_bundle.manifest)


def test_what_was_not_committed_is_not_there(tiny_bundle: Bundle, tmp_path: Path) -> None:
    """As kill -9 leaves the files: what had begun to be written, and the log of what was."""
    with Journal(tmp_path / "live", tiny_bundle.manifest) as journal:
        append(journal, [0], [1])
        shutil.copytree(tmp_path / "live", tmp_path / "whole")
        append(journal, [2, 3])
        shutil.copytree(tmp_path / "live", tmp_path / "copy")
    log = tmp_path / "copy" / "journal.sqlite-wal"
    content, whole = log.read_bytes(), (tmp_path / "whole" / "journal.sqlite-wal").stat().st_size
    for kept in (whole, whole + 10, whole + 1000, len(content) - 1, len(content)):
        log.write_bytes(content[:kept] + bytes(100))
        (tmp_path / "copy" / "journal.sqlite-shm").unlink(missing_ok=True)
        shutil.copytree(tmp_path / "copy", tmp_path / str(kept))
        assert same(replayed(tmp_path / str(kept), tiny_bundle), range(4 if kept == len(content) else 2))


def test_damage_is_refused(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with Journal(tmp_path, tiny_bundle.manifest) as journal:
        append(journal, *([number] for number in range(20)))
    content = (tmp_path / "journal.sqlite").read_bytes()
    vector = record(7).vector
    assert vector is not None
    places = [
        content.index(b"id-7"),
        content.index('text": "ü9'.encode()),
        content.index(vector.tobytes()) + 30,
        3,  # what says that it is a database
        content.index(b'"journal"'),
    ]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1
        (tmp_path / "journal.sqlite").write_bytes(damaged)
        with raises(JournalError):
            replayed(tmp_path, tiny_bundle)
    (tmp_path / "journal.sqlite").write_bytes(content[: len(content) // 2])
    with raises(JournalError):
        replayed(tmp_path, tiny_bundle)


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM changes WHERE sequence = 3",
        "DELETE FROM changes WHERE sequence = 5",
        "UPDATE changes SET sequence = 9 WHERE sequence = 5",
        "UPDATE changes SET impacts = '{}' WHERE sequence = 2",
        "DROP TABLE changes",
    ],
)
def test_changes_of_others_are_refused(tiny_bundle: Bundle, tmp_path: Path, change: str) -> None:
    with Journal(tmp_path, tiny_bundle.manifest) as journal:
        append(journal, [0, 1, 2], [3, 4])
        with sqlite3.connect(tmp_path / "journal.sqlite") as other:
            other.execute(change)
        other.close()
        journal.sequence = 0
        with raises(JournalError, naming="journal.sqlite"), journal.writing(perf_counter() + SOON):
            pass


def test_a_journal_of_another_model_is_refused(tiny_bundle: Bundle, tmp_path: Path) -> None:
    other = make_tiny_bundle(tmp_path / "other", documents=20, dimension=8)
    with Journal(tmp_path / "live", tiny_bundle.manifest):
        pass
    with raises(JournalError, naming="16"):
        replayed(tmp_path / "live", other)


def test_one_writes_at_a_time(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with Journal(tmp_path, tiny_bundle.manifest) as one, Journal(tmp_path, tiny_bundle.manifest) as two:
        with one.writing(perf_counter() + SOON), pytest.raises(TimeoutError), two.writing(perf_counter() + 0.05):
            pass
        start = Barrier(2)

        def write(journal: Journal, offset: int) -> None:
            start.wait()
            for number in range(offset, offset + 100):
                append(journal, [number])

        with ThreadPoolExecutor(2) as threads:
            list(threads.map(write, (one, two), (0, 100)))
    found = replayed(tmp_path, tiny_bundle)
    assert sorted(one.id for one in found) == sorted(f"id-{number}" for number in range(200))


def test_a_folder_that_can_hold_no_journal_is_told(tiny_bundle: Bundle, tmp_path: Path) -> None:
    """A bundle with other files can't be opened, so the service would not start again."""
    (tmp_path / "file").write_text("")
    with raises(DiskError):
        Journal(tmp_path / "file", tiny_bundle.manifest)
    shutil.copytree(tiny_bundle.path, tmp_path / "bundle")
    for folder in (tmp_path / "bundle", tmp_path / "bundle" / "live", tmp_path / "bundle" / "a" / "b"):
        with raises(BundleError, naming="journal.sqlite"):
            Journal(folder, tiny_bundle.manifest)
    Bundle.open(tmp_path / "bundle")
