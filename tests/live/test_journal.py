"""The journal: what is acknowledged is there, an end that was not written whole is cut off, other damage is refused."""

import logging
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from threading import Barrier, Thread
from time import perf_counter

import numpy as np
import pytest
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import DiskError, JournalError
from lightretriever.artifacts.live.journal import Journal, Record

from tests.service.process import ROOT
from tests.support.tiny import make_tiny_bundle

SOON = 60.0


def record(number: int) -> Record:
    vector = np.random.default_rng(number).standard_normal(16).astype(np.float32)
    return Record(
        f"id-{number}", f'{{"_id": "id-{number}", "text": "ü{number}"}}'.encode(), vector, {"word": number + 1}
    )


def same(found: list[Record], numbers: range | list[int]) -> bool:
    expected = [record(number) for number in numbers]
    return [(one.id, one.raw, dict(one.impacts), one.vector.tolist()) for one in found if one.vector is not None] == [
        (one.id, one.raw, dict(one.impacts), one.vector.tolist()) for one in expected if one.vector is not None
    ]


def opened(folder: Path, bundle: Bundle) -> Journal:
    return Journal(folder, bundle.manifest)


def append(journal: Journal, *groups: list[int]) -> list[Record]:
    """Append records, each group at once; give what others had appended before."""
    with journal.writing(perf_counter() + SOON) as missed:
        for group in groups:
            journal.append([record(number) for number in group])
        return missed


def replayed(folder: Path, bundle: Bundle) -> list[Record]:
    with opened(folder, bundle) as journal, journal.writing(perf_counter() + SOON) as found:
        return found


def only_file(folder: Path) -> Path:
    (file,) = folder.glob("*.journal")
    return file


def test_what_was_appended_is_read_again(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with opened(tmp_path, tiny_bundle) as journal:
        append(journal, [0], [1, 2, 3], [4])
        assert journal.sequence == 5
        with journal.writing(perf_counter() + SOON):
            journal.append([Record("id-2")])
    found = replayed(tmp_path, tiny_bundle)
    assert same(found[:5], range(5))
    assert found[5:] == [Record("id-2", None, None, {})]


def test_readers_follow_writers_over_files(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with opened(tmp_path, tiny_bundle) as one, opened(tmp_path, tiny_bundle) as two:
        append(one, [0], [1])
        assert same(two.read(), [0, 1])
        assert append(two, [2]) == []
        assert same(append(one, [3]), [2])
        with one.writing(perf_counter() + SOON):
            one.rotate()
            one.rotate()  # there is nothing in the new file
            one.append([record(4)])
        assert len(list(tmp_path.glob("*.journal"))) == 2
        assert same(two.read(), [3, 4])
        assert (one.sequence, two.sequence) == (5, 5)
        with two.writing(perf_counter() + SOON):
            two.drop(4)
        assert only_file(tmp_path).stem == f"{5:020d}"
        append(one, [5])
        assert same(two.read(), [5])
    with opened(tmp_path, tiny_bundle) as again:
        assert again.first == 5
        with pytest.raises(JournalError, match="begins with change 5, and the bundle has its changes up to 0"):
            again.position_of(tiny_bundle.manifest)


def test_many_files_are_one_journal(tiny_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightretriever.artifacts.live.journal._LARGEST_BYTES", 1000)
    with opened(tmp_path, tiny_bundle) as journal:
        append(journal, *([number] for number in range(50)))
    assert len(list(tmp_path.glob("*.journal"))) > 5
    assert same(replayed(tmp_path, tiny_bundle), range(50))
    files = sorted(tmp_path.glob("*.journal"))
    files[2].unlink()
    with pytest.raises(JournalError, match="the journal is damaged behind change"):
        replayed(tmp_path, tiny_bundle)


@pytest.mark.parametrize("kept", [1, 10, 23, 24, 60, -1])
def test_an_end_that_was_not_written_whole_is_cut_off_and_told(
    tiny_bundle: Bundle, tmp_path: Path, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path, tiny_bundle) as journal:
        append(journal, [0], [1])
        whole = only_file(tmp_path).stat().st_size
        append(journal, [2, 3])
    content = only_file(tmp_path).read_bytes()
    only_file(tmp_path).write_bytes(content[: whole + kept] if kept > 0 else content[:kept])
    with caplog.at_level(logging.WARNING):
        assert same(replayed(tmp_path, tiny_bundle), [0, 1])
    assert "journal cut behind its last whole change" in caplog.text
    assert only_file(tmp_path).stat().st_size == whole
    with opened(tmp_path, tiny_bundle) as journal:
        assert same(append(journal, [5]), [0, 1])
    assert same(replayed(tmp_path, tiny_bundle), [0, 1, 5])


def test_a_page_of_zeros_at_the_end_is_cut_off(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with opened(tmp_path, tiny_bundle) as journal:
        append(journal, [0])
    with only_file(tmp_path).open("ab") as file:
        file.write(bytes(4096))
    assert same(replayed(tmp_path, tiny_bundle), [0])


def test_damage_before_the_end_is_refused(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with opened(tmp_path, tiny_bundle) as journal:
        first = only_file(tmp_path).stat().st_size
        append(journal, [0])
        second = only_file(tmp_path).stat().st_size
        append(journal, [1], [2])
    content = only_file(tmp_path).read_bytes()
    for place in (first, first + 5, first + 9, first + 20, (first + second) // 2, second - 1):
        damaged = bytearray(content)
        damaged[place] ^= 1
        only_file(tmp_path).write_bytes(damaged)
        with pytest.raises(JournalError, match=rf"byte {first}: the journal is damaged behind change 0\. Restore"):
            replayed(tmp_path, tiny_bundle)
        assert only_file(tmp_path).read_bytes() == damaged
    only_file(tmp_path).write_bytes(b"x" + content[1:])
    with pytest.raises(JournalError, match="byte 0: the journal is damaged"):
        replayed(tmp_path, tiny_bundle)


def test_a_journal_of_another_model_is_refused(tiny_bundle: Bundle, tmp_path: Path) -> None:
    other = make_tiny_bundle(tmp_path / "other", documents=20, dimension=8)
    with opened(tmp_path / "live", tiny_bundle):
        pass
    with pytest.raises(JournalError, match="the journal's dimension is 16, the bundle's 8"):
        replayed(tmp_path / "live", other)


def test_one_writes_at_a_time(tiny_bundle: Bundle, tmp_path: Path) -> None:
    with opened(tmp_path, tiny_bundle) as one, opened(tmp_path, tiny_bundle) as two:
        with one.writing(perf_counter() + SOON), pytest.raises(TimeoutError), two.writing(perf_counter() + 0.05):
            pass
        start = Barrier(2)

        def write(journal: Journal, offset: int) -> None:
            start.wait()
            for number in range(offset, offset + 100):
                append(journal, [number])

        threads = [Thread(target=write, args=args) for args in ((one, 0), (two, 100))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = replayed(tmp_path, tiny_bundle)
    assert sorted(one.id for one in found) == sorted(f"id-{number}" for number in range(200))


def test_a_full_disk_leaves_the_journal_as_it_was(tiny_bundle: Bundle, tmp_path: Path) -> None:
    script = f"""
import resource, sys
from pathlib import Path
from time import perf_counter
from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import DiskError
from tests.live.test_journal import append, opened
bundle, folder = Bundle.open(Path({str(tiny_bundle.path)!r})), Path({str(tmp_path)!r})
with opened(folder, bundle) as journal:
    append(journal, [0])
    (file,) = folder.glob("*.journal")
    size = file.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, size + 50))
    try:
        append(journal, [1])
    except DiskError as error:
        print(error)
    else:
        sys.exit("there was room")
    assert file.stat().st_size == size
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert "Look at free space" in done.stdout
    with opened(tmp_path, tiny_bundle) as journal:
        assert same(append(journal, [2]), [0])
    assert same(replayed(tmp_path, tiny_bundle), [0, 2])


def test_a_folder_that_can_not_be_made_is_told(tiny_bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match="file can't be written"):
        Journal(tmp_path / "file", tiny_bundle.manifest)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"[[1, false, {}, null]]",
        b'[["a", false, [], null]]',
        b'[["a", true, {}, "{}"]]',
        b'{"a": 1}',
        b"[[",
    ],
)
def test_a_frame_with_a_right_checksum_and_another_content_is_refused(
    tiny_bundle: Bundle, tmp_path: Path, content: bytes
) -> None:
    opened(tmp_path, tiny_bundle).close()
    size = only_file(tmp_path).stat().st_size
    body = struct.pack("<Q", len(content)) + content
    head = struct.pack("<QQQ", len(body), 1, 1)
    frame = b"LRJ1" + struct.pack("<I", zlib.crc32(body, zlib.crc32(head))) + head + body
    with only_file(tmp_path).open("ab") as file:
        file.write(frame)
    with (
        opened(tmp_path, tiny_bundle) as journal,
        pytest.raises(JournalError, match=rf"byte {size}: the journal is damaged behind change 0\."),
    ):
        journal.read()
