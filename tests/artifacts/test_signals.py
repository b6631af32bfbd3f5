"""Stopping by a signal: real signals to this process, and to others where they would end it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

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
