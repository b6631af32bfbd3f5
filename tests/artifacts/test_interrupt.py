"""Stopping by a signal: real signals to this process, and to others where they would end it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import indent

import pytest
from lightretriever.artifacts import signals as interrupt
from lightretriever.artifacts.files.workdir import scratch_folder, write_atomically
from lightretriever.artifacts.signals import Stopped, check_stopped, past_stopping, stoppable, uninterrupted

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
    found = None
    try:
        with stoppable():
            yield
    except Stopped as error:
        found = error
    assert found is not None
    assert found.number == number
    assert str(found) == f"stopped by {signal.Signals(number).name}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_raised_where_the_work_is(number: int) -> None:
    with stopped(number):
        send(number)
        time.sleep(60)
    assert signal.getsignal(number) == signal.SIG_DFL  # the next one ends the process
    check_stopped()  # which is over


def test_handlers_are_those_of_before_when_nothing_came() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stoppable():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    assert not [thread for thread in threading.enumerate() if thread.name == "signals"]


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stoppable():
        send(signal.SIGINT)
        check_stopped()


def test_what_must_be_whole_is_done_to_its_end() -> None:
    done = []
    with stopped(signal.SIGTERM):
        with uninterrupted():
            send(signal.SIGTERM)
            with uninterrupted():
                done.append("inside")
            done.append("end")
        done.append("after")
    assert done == ["inside", "end"]


def test_a_file_is_written_to_its_end_and_a_scratch_folder_removed(tmp_path: Path) -> None:
    with stopped(signal.SIGINT), scratch_folder(tmp_path, "words-") as folder:
        (folder / "file").touch()
        with uninterrupted():
            send(signal.SIGINT)
            write_atomically(tmp_path / "file", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_a_signal_that_was_swallowed_is_raised_again() -> None:
    with stoppable():
        try:
            send(signal.SIGINT)
            time.sleep(60)
        except Stopped:
            pass
        with pytest.raises(Stopped):
            check_stopped()


def test_a_signal_lost_in_a_destructor_is_raised_again(capfd: pytest.CaptureFixture[str]) -> None:
    class Sender:
        def __del__(self) -> None:
            send(signal.SIGINT)
            time.sleep(60)

    with stopped(signal.SIGINT):
        Sender()
        check_stopped()
    assert capfd.readouterr().err == ""


def test_an_error_after_a_signal_is_its_consequence() -> None:
    with stopped(signal.SIGINT):
        try:
            send(signal.SIGINT)
            time.sleep(60)
        except Stopped as error:
            raise RuntimeError("the library was interrupted") from error
    with pytest.raises(RuntimeError, match="alone"), stoppable():
        raise RuntimeError("alone")


def test_what_is_done_is_not_stopped_any_more() -> None:
    with stoppable():
        past_stopping()
        send(signal.SIGINT)
        check_stopped()


def test_what_is_not_stopped_is_not_said_to_be_stopping(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "_PATIENCE_S", 0.01)
    with stoppable():
        past_stopping()
        send(signal.SIGINT)
        time.sleep(0.5)
    assert capfd.readouterr().err == ""


JAVA = """
from lightretriever.artifacts.sparse.jvm import java_call, java_class
latch = java_class("java.util.concurrent.CountDownLatch")(1)
with uninterrupted():
    print("in Java", flush=True)
    java_call(getattr(latch, "await"))
"""
HELD = """
import time
with uninterrupted():
    print("held off", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("work", [JAVA, HELD], ids=["in Java", "held off"])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_the_process_at_once(work: str, second: int) -> None:
    script = f"from artifacts.interrupt import stoppable, uninterrupted\nwith stoppable():\n{indent(work, '    ')}"
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdout.readline()
            process.send_signal(signal.SIGTERM)
            said = process.stderr.readline() + process.stderr.readline()  # after two seconds
            assert "once more ends it at once" in said
            assert process.poll() is None
            process.send_signal(second)
            assert process.wait(60) == 128 + second
        finally:
            process.kill()
