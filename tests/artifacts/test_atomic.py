"""New folders appear whole or not at all."""

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files import atomic_dir as atomic
from lightretriever.artifacts.files.atomic_dir import check_target, new_folder

CHECKOUT = Path(__file__).parents[2]


def write(target: Path, text: str, *, overwrite: bool = False) -> None:
    with new_folder(target, overwrite=overwrite, marker="marker") as folder:
        (folder / "marker").write_text(text, encoding="utf-8")
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(text, encoding="utf-8")
        assert folder.parent == target.parent  # the same file system, so that the rename is one


def write_half(target: Path, error: type[BaseException]) -> None:
    with new_folder(target, overwrite=True, marker="marker") as folder:
        (folder / "marker").touch()
        raise error


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_the_folder_is_not_there_until_the_block_has_ended(tmp_path: Path) -> None:
    with new_folder(tmp_path / "t", overwrite=False, marker="marker") as folder:
        (folder / "marker").touch()
        assert not (tmp_path / "t").exists()
    assert names(tmp_path) == ["t", "t/marker"]


def test_overwriting_replaces_everything(tmp_path: Path) -> None:
    write(tmp_path / "t", "old")
    (tmp_path / "t" / "left-over").touch()
    write(tmp_path / "t", "new", overwrite=True)
    assert names(tmp_path) == ["t", "t/marker", "t/sub", "t/sub/file"]
    assert (tmp_path / "t" / "sub" / "file").read_text(encoding="utf-8") == "new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_folder(tmp_path: Path, error: type[BaseException]) -> None:
    write(tmp_path / "t", "old")
    before = names(tmp_path)
    with pytest.raises(error):
        write_half(tmp_path / "t", error)
    assert names(tmp_path) == before


def test_what_came_in_the_way_meanwhile_is_kept(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="exists already"), new_folder(tmp_path / "t", overwrite=False, marker="m"):
        write(tmp_path / "t", "another process was faster")
    assert names(tmp_path) == ["t", "t/marker", "t/sub", "t/sub/file"]


@pytest.mark.parametrize("make", ["file", "link", "folder"])
def test_only_a_folder_with_the_marker_is_overwritten(tmp_path: Path, make: str) -> None:
    target = tmp_path / "t"
    if make == "file":
        target.write_text("precious", encoding="utf-8")
    elif make == "link":
        write(tmp_path / "real", "precious")
        target.symlink_to(tmp_path / "real")
    else:
        target.mkdir()
    before = names(tmp_path)
    with pytest.raises(BundleError, match="is not overwritten"):
        write(target, "new", overwrite=True)
    assert names(tmp_path) == before


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("to", ["real", "nowhere"])
def test_a_link_is_called_a_link(tmp_path: Path, to: str, overwrite: bool) -> None:
    write(tmp_path / "real", "precious")
    (tmp_path / "t").symlink_to(tmp_path / to)
    with pytest.raises(BundleError, match=r"t is a link, so it is not overwritten\. Give a folder"):
        check_target(tmp_path / "t", overwrite=overwrite, marker="marker")


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BundleError, match=rf"{tmp_path}/file/t can't be written: .*Not a directory"):
        write(tmp_path / "file" / "t", "x")


def test_a_relative_target_stays_where_it_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with new_folder(Path("t"), overwrite=False, marker="marker") as folder:
        (folder / "marker").touch()
        os.chdir("/")
    assert names(tmp_path) == ["t", "t/marker"]


def test_the_folder_has_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    write(tmp_path / "t", "x")
    assert (tmp_path / "t").stat().st_mode == (tmp_path / "usual").stat().st_mode


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    write(tmp_path / "t", "old")
    before = descriptors()
    write(tmp_path / "t", "new", overwrite=True)
    with pytest.raises(RuntimeError):
        write_half(tmp_path / "t", RuntimeError)
    with pytest.raises(BundleError):
        write(tmp_path / "t", "refused")
    assert descriptors() == before


# ---- the swap ----


def in_steps(one: Path, other: Path) -> bool:
    """An `_exchange` where the kernel can't."""
    return False


def test_two_folders_swap_names_in_one_step(tmp_path: Path) -> None:
    write(tmp_path / "one", "1")
    write(tmp_path / "other", "2")
    assert atomic._exchange(tmp_path / "one", tmp_path / "other")
    assert [(tmp_path / name / "marker").read_text(encoding="utf-8") for name in ("one", "other")] == ["2", "1"]


def test_an_exchange_that_can_not_be_done_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "t", "old")
    before = names(tmp_path)
    assert not atomic._exchange(tmp_path / "t", tmp_path / "t" / "sub")  # EINVAL, as where nothing can be exchanged
    with pytest.raises(FileNotFoundError) as caught:
        atomic._exchange(tmp_path / "t", tmp_path / "none")
    assert (caught.value.errno, caught.value.filename2) == (errno.ENOENT, str(tmp_path / "none"))
    assert names(tmp_path) == before


def test_the_steps_do_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_exchange", in_steps)
    write(tmp_path / "t", "old")
    write(tmp_path / "t", "new", overwrite=True)
    assert (tmp_path / "t" / "marker").read_text(encoding="utf-8") == "new"
    assert names(tmp_path) == ["t", "t/marker", "t/sub", "t/sub/file"]


@pytest.mark.parametrize("error", [PermissionError(errno.EACCES, "Permission denied"), KeyboardInterrupt()])
def test_a_failure_between_the_steps_puts_the_old_folder_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    write(tmp_path / "t", "old")
    before = names(tmp_path)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.suffix == ".new":
            raise error
        return rename(self, target)

    monkeypatch.setattr(atomic, "_exchange", in_steps)
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises((BundleError, KeyboardInterrupt)):
        write(tmp_path / "t", "new", overwrite=True)
    assert names(tmp_path) == before
    assert (tmp_path / "t" / "marker").read_text(encoding="utf-8") == "old"


# ---- writers that are killed ----

WRITER = """
import os, signal, sys
from pathlib import Path
from lightretriever.artifacts.files import atomic_dir as atomic

target, kill_after = Path(sys.argv[1]), sys.argv[2]
renames = 0
rename, exchange = Path.rename, atomic._exchange

def counted(self, new):
    global renames
    rename(self, new)
    renames += 1
    if kill_after == f"step {renames}":
        os.kill(os.getpid(), signal.SIGKILL)

def killed_exchange(one, other):
    if kill_after != "exchange":
        return False
    assert exchange(one, other)
    os.kill(os.getpid(), signal.SIGKILL)

Path.rename, atomic._exchange = counted, killed_exchange
with atomic.new_folder(target, overwrite=True, marker="marker") as folder:
    (folder / "marker").write_text("killed", encoding="utf-8")
    (folder / "large").write_bytes(bytes(1_000_000))
    print("writing", flush=True)
    sys.stdin.read()
"""


@contextmanager
def writer(target: Path, kill_after: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that is in the middle of writing `target`; it goes on when its standard input is closed."""
    command = [sys.executable, "-c", WRITER, str(target), kill_after]
    with subprocess.Popen(command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process


def shapes(folder: Path) -> list[str]:
    """What lies directly in a folder, with TAG for what is random."""
    return sorted(re.sub(r"\.[0-9a-f]{8}\.", ".TAG.", path.name) for path in folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_writer_leaves_is_removed_by_the_next(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path / "t", "old")
    with writer(tmp_path / "t") as process:
        process.send_signal(number)
    assert process.returncode == -number
    assert shapes(tmp_path) == [".t.TAG.new", "t"]
    assert (tmp_path / "t" / "marker").read_text(encoding="utf-8") == "old"
    write(tmp_path / "t", "new", overwrite=True)
    assert names(tmp_path) == ["t", "t/marker", "t/sub", "t/sub/file"]


def test_left_overs_are_removed_even_when_the_target_is_in_the_way(tmp_path: Path) -> None:
    write(tmp_path / "t", "old")
    with writer(tmp_path / "t") as process:
        process.kill()
    with pytest.raises(BundleError, match="exists already"):
        write(tmp_path / "t", "new")
    assert shapes(tmp_path) == ["t"]


@pytest.mark.parametrize(
    ("kill_after", "left", "content"),
    [
        ("exchange", [".t.TAG.new", "t"], "killed"),
        ("step 1", [".t.TAG.new", ".t.TAG.old"], "old"),
        ("step 2", [".t.TAG.old", "t"], "killed"),
        ("step 3", [".t.TAG.new", "t"], "killed"),
    ],
)
def test_a_kill_within_the_swap_costs_nothing(tmp_path: Path, kill_after: str, left: list[str], content: str) -> None:
    write(tmp_path / "t", "old")
    with writer(tmp_path / "t", kill_after) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert shapes(tmp_path) == left
    with pytest.raises(RuntimeError):
        write_half(tmp_path / "t", RuntimeError)
    assert shapes(tmp_path) == ["t"]
    assert (tmp_path / "t" / "marker").read_text(encoding="utf-8") == content
    write(tmp_path / "t", "new", overwrite=True)
    assert names(tmp_path) == ["t", "t/marker", "t/sub", "t/sub/file"]


def test_a_writer_that_lives_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "t", "old")
    with writer(tmp_path / "t") as process:
        write(tmp_path / "t", "meanwhile", overwrite=True)
        assert shapes(tmp_path) == [".t.TAG.new", "t"]
        process.communicate()
    assert process.returncode == 0
    assert names(tmp_path) == ["t", "t/large", "t/marker"]


def test_a_folder_that_was_taken_for_a_left_over_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer may find the new folder between its making and its locking."""
    lock, made = atomic._lock, list[Path]()

    def late(folder: Path) -> int | None:
        made.append(folder)
        if len(made) == 1:
            monkeypatch.setattr(atomic, "_lock", lock)
            write(tmp_path / "t", "another was faster")
            monkeypatch.setattr(atomic, "_lock", late)
            assert not folder.exists()
        return lock(folder)

    monkeypatch.setattr(atomic, "_lock", late)
    write(tmp_path / "t", "new", overwrite=True)
    assert len(made) == 2
    assert shapes(tmp_path) == ["t"]
    assert (tmp_path / "t" / "marker").read_text(encoding="utf-8") == "new"


def test_a_folder_that_was_removed_while_being_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, before = fcntl.flock, descriptors()

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        write(tmp_path / "t", "another was faster")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write(tmp_path / "t", "new", overwrite=True)
    assert (tmp_path / "t" / "marker").read_text(encoding="utf-8") == "new"
    assert shapes(tmp_path) == ["t"]
    assert descriptors() == before


@pytest.mark.parametrize("name", [".t.0123abcd.x", ".t.123.new", ".tt.0123abcd.new", "t.0123abcd.new", ".t..new"])
def test_only_left_overs_of_the_same_target_are_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    write(tmp_path / "t", "x")
    assert (tmp_path / name).is_dir()


@pytest.mark.parametrize("suffix", ["new", "old"])
def test_a_link_with_the_name_of_a_left_over_is_not_followed(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / "real", "precious")
    (tmp_path / f".t.0123abcd.{suffix}").symlink_to(tmp_path / "real")
    write(tmp_path / "t", "x")
    assert (tmp_path / "real" / "marker").read_text(encoding="utf-8") == "precious"
