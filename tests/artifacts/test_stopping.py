"""Stopping: a signal is raised where the work is, and new folders appear whole or not at all, whoever is killed."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lightretriever.artifacts.errors import BundleError
from lightretriever.artifacts.files.atomic import check_target, new_folder
from lightretriever.artifacts.files.workdir import write_atomically
from lightretriever.artifacts.signals import Stopped, check_stopped, commit_point, stoppable
from tests.support.wordings import raises

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Python's own handlers before a test, and those of before after it."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@contextmanager
def stopped(number: int) -> Iterator[None]:
    """The block is stopped by that signal."""
    with pytest.raises(Stopped, match=f"^stopped by {signal.Signals(number).name}$") as caught, stoppable():
        yield
    assert caught.value.number == number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_raised_where_the_work_is(number: int) -> None:
    with stopped(number):
        send(number)
        time.sleep(60)
    assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # the next one ends it
    check_stopped()  # which is over


@pytest.mark.parametrize("committed", [False, True])
def test_handlers_are_those_of_before_when_nothing_came(committed: bool) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stoppable():
        assert signal.getsignal(signal.SIGTERM) != before
        if committed:
            commit_point()
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stoppable():
        send(signal.SIGINT)
        check_stopped()


def test_a_file_that_is_being_written_is_gone_or_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "file", b"before")
    monkeypatch.setattr(os, "fsync", lambda descriptor: send(signal.SIGTERM))
    for name in ("file", "other"):
        with stopped(signal.SIGTERM):
            write_atomically(tmp_path / name, b"half")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"before"


def test_a_signal_that_was_swallowed_is_raised_again() -> None:
    with stoppable():
        try:
            send(signal.SIGINT)
            time.sleep(60)
        except Stopped:
            pass
        with pytest.raises(Stopped):
            check_stopped()


@pytest.mark.parametrize("raises_again", [check_stopped, commit_point])
def test_a_signal_that_python_can_not_raise_is_raised_again(
    capsys: pytest.CaptureFixture[str], raises_again: Callable[[], None]
) -> None:
    class Deleted:
        def __del__(self) -> None:
            send(signal.SIGTERM)
            for _ in range(1000):
                pass

    before = sys.unraisablehook
    with stopped(signal.SIGTERM):
        Deleted()
        raises_again()
    assert sys.unraisablehook is before
    assert capsys.readouterr().err == ""


def test_an_error_after_a_signal_is_its_consequence() -> None:
    with stopped(signal.SIGINT):
        try:
            send(signal.SIGINT)
            time.sleep(60)
        except Stopped as error:
            raise RuntimeError("the library was interrupted") from error
    with raises(RuntimeError), stoppable():
        raise RuntimeError("alone")


def test_after_the_commit_point_nothing_is_stopped() -> None:
    with stoppable():
        commit_point()
        send(signal.SIGINT)
        send(signal.SIGTERM)
        check_stopped()


CLEARING_UP = """
import time
from lightretriever.artifacts.signals import stoppable
with stoppable():
    try:
        print("at work", flush=True)
        time.sleep(600)
    finally:
        print("clearing up", flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_the_process_at_once(second: int) -> None:
    command = [sys.executable, "-c", CLEARING_UP]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "at work\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "clearing up\n"
            process.send_signal(second)
            assert process.wait(60) == -second
        finally:
            process.kill()


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


def test_overwriting_replaces_everything_with_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    write(tmp_path / "t", "old")
    (tmp_path / "t" / "left-over").touch()
    write(tmp_path / "t", "new", overwrite=True)
    assert names(tmp_path) == ["t", "t/marker", "t/sub", "t/sub/file", "usual"]
    assert (tmp_path / "t" / "sub" / "file").read_text(encoding="utf-8") == "new"
    assert (tmp_path / "t").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_failure_leaves_the_old_folder(tmp_path: Path, error: type[BaseException]) -> None:
    write(tmp_path / "t", "old")
    before = names(tmp_path)
    with pytest.raises(error):
        write_half(tmp_path / "t", error)
    assert names(tmp_path) == before


def test_what_came_in_the_way_meanwhile_is_kept(tmp_path: Path) -> None:
    with raises(BundleError), new_folder(tmp_path / "t", overwrite=False, marker="m"):
        (tmp_path / "t").mkdir()
    assert names(tmp_path) == ["t"]


@pytest.mark.parametrize(
    "make",
    [
        Path.touch,
        Path.mkdir,
        lambda target: target.symlink_to(target.with_name("real")),
        lambda target: target.symlink_to(target.with_name("nowhere")),
    ],
)
def test_only_a_folder_with_the_marker_is_overwritten(tmp_path: Path, make: Callable[[Path], None]) -> None:
    write(tmp_path / "real", "precious")
    make(tmp_path / "t")
    before = names(tmp_path)
    for overwrite in (False, True):
        with raises(BundleError):
            check_target(tmp_path / "t", overwrite=overwrite, marker="marker")
        with raises(BundleError):
            write(tmp_path / "t", "new", overwrite=overwrite)
        assert names(tmp_path) == before


def test_whether_a_place_can_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    write(tmp_path / "t", "old")
    before = names(tmp_path)
    for place in ("file/t", "x" * 254):
        with raises(BundleError):
            check_target(tmp_path / place, overwrite=True, marker="marker")
    for place in ("t", "other"):
        check_target(tmp_path / place, overwrite=True, marker="marker")
    assert names(tmp_path) == before


def test_a_relative_target_stays_where_it_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with new_folder(Path("t"), overwrite=False, marker="marker") as folder:
        (folder / "marker").touch()
        os.chdir("/")
    assert names(tmp_path) == ["t", "t/marker"]


# ---- writers that are killed ----

WRITER = """
import os, signal, sys
from pathlib import Path
from lightretriever.artifacts.files.atomic import new_folder

target, kill_after = Path(sys.argv[1]), int(sys.argv[2])
renames = 0
rename = Path.rename

def counted(self, new):
    global renames
    rename(self, new)
    renames += 1
    if renames == kill_after:
        os.kill(os.getpid(), signal.SIGKILL)

Path.rename = counted
with new_folder(target, overwrite=True, marker="marker") as folder:
    (folder / "marker").write_text("killed", encoding="utf-8")
    (folder / "large").write_bytes(bytes(1_000_000))
    print("writing", flush=True)
    sys.stdin.read()
"""


@contextmanager
def writer(target: Path, kill_after: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Another process that is in the middle of writing `target`; it goes on when its standard input is closed."""
    command = [sys.executable, "-c", WRITER, str(target), str(kill_after)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        yield process


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_a_killed_writer_leaves_is_removed_by_the_next(tmp_path: Path, number: signal.Signals) -> None:
    write(tmp_path / "t", "old")
    with writer(tmp_path / "t") as process:
        process.send_signal(number)
    assert process.returncode == -number
    assert entries(tmp_path) == [".t.new", "t"]
    assert (tmp_path / "t" / "marker").read_text(encoding="utf-8") == "old"
    write(tmp_path / "t", "new", overwrite=True)
    assert names(tmp_path) == ["t", "t/marker", "t/sub", "t/sub/file"]


@pytest.mark.parametrize(
    ("renames", "left", "content"), [(1, [".t.new", ".t.old"], "old"), (2, [".t.old", "t"], "killed")]
)
def test_a_kill_within_the_swap_costs_nothing(tmp_path: Path, renames: int, left: list[str], content: str) -> None:
    write(tmp_path / "t", "old")
    with writer(tmp_path / "t", renames) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert entries(tmp_path) == left
    with pytest.raises(RuntimeError):
        write_half(tmp_path / "t", RuntimeError)
    assert entries(tmp_path) == ["t"]
    assert (tmp_path / "t" / "marker").read_text(encoding="utf-8") == content
    write(tmp_path / "t", "new", overwrite=True)
    assert names(tmp_path) == ["t", "t/marker", "t/sub", "t/sub/file"]


def test_a_failure_within_the_swap_puts_the_old_folder_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "t", "old")
    before = names(tmp_path)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.suffix == ".new":
            raise PermissionError(13, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with raises(BundleError, naming="13"):
        write(tmp_path / "t", "new", overwrite=True)
    assert names(tmp_path) == before
    assert (tmp_path / "t" / "marker").read_text(encoding="utf-8") == "old"


def test_a_writer_that_lives_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path / "t", "old")
    with writer(tmp_path / "t") as process:
        with raises(BundleError):
            write(tmp_path / "t", "meanwhile", overwrite=True)
        assert entries(tmp_path) == [".t.new", "t"]
        write(tmp_path / "other", "not in the way")
        process.communicate()
    assert process.returncode == 0
    assert entries(tmp_path) == ["other", "t"]
    assert entries(tmp_path / "t") == ["large", "marker"]


@pytest.mark.parametrize("before", ["open", "flock"])
def test_a_folder_that_its_writer_renames_while_it_is_being_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    module, opened = {"open": os, "flock": fcntl}[before], len(entries(Path("/proc/self/fd")))
    call = getattr(module, before)

    def late(*arguments: object) -> object:
        monkeypatch.setattr(module, before, call)
        (tmp_path / ".t.new").rename(tmp_path / "t")
        (tmp_path / "t" / "marker").write_text("another was faster", encoding="utf-8")
        return call(*arguments)

    monkeypatch.setattr(module, before, late)
    write(tmp_path / "t", "new", overwrite=True)
    assert (tmp_path / "t" / "marker").read_text(encoding="utf-8") == "new"
    assert entries(tmp_path) == ["t"]
    assert len(entries(Path("/proc/self/fd"))) == opened


def test_only_left_overs_of_the_same_target_are_removed(tmp_path: Path) -> None:
    others = [".t.new.x", ".t.x", ".tt.new", "t.new"]
    for name in others:
        (tmp_path / name).mkdir()
    write(tmp_path / "t", "x")
    assert entries(tmp_path) == sorted([*others, "t"])


def test_links_in_place_of_left_overs_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "real", "precious")
    (tmp_path / ".t.old").symlink_to(tmp_path / "real")
    write(tmp_path / "t", "x")
    (tmp_path / ".t.new").symlink_to(tmp_path / "real")
    with raises(BundleError, naming="20"):
        write(tmp_path / "t", "x", overwrite=True)
    assert (tmp_path / "real" / "marker").read_text(encoding="utf-8") == "precious"
