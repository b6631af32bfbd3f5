"""Stopping an offline command by Ctrl-C (SIGINT) or SIGTERM: at any moment, but not within what must be whole.

The first signal raises `Stopped` in the main thread, so that every `with` and `finally` on the way out clears up. What
must not be left half done runs within `uninterrupted()`, at whose end the signal takes effect. The second signal ends
the process at once, wherever it is, as SIGKILL does.

Python runs its handlers in the main thread, between two of its own instructions. While that thread is inside Faiss,
PyTorch or Java, a thread of our own sees the signals come: it says that a stop takes its time, and ends the process at
the second one.
"""

import atexit
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = ["Stopped", "check_stopped", "past_stopping", "stoppable", "uninterrupted"]

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_PATIENCE_S: Final = 2.0  # a stop that takes longer is spoken of
_SLOW: Final = b"\nstopping; once more ends it at once, and leaves the clearing up to the next run\n"
_SHOW_CURSOR: Final = b"\x1b[?25h"


class Stopped(KeyboardInterrupt):
    """A signal stopped the command; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@dataclass
class _State:
    """The signal that came, whether `Stopped` was raised for it, and what holds it off."""

    number: int | None = None
    raised: bool = False
    done: bool = False
    uninterrupted: int = 0


_state = _State()


@contextmanager
def stoppable() -> Iterator[None]:
    """Let SIGINT and SIGTERM raise `Stopped` in this block, the first time; the second time they end the process.

    An error after a signal counts as its consequence, and becomes `Stopped`. A signal that is ignored stays so, as in
    the background of a shell script. To be entered in the main thread, and not within itself.
    """
    global _state
    _state = _State()
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}
    ours = [number for number in SIGNALS if before[number] is not signal.SIG_IGN]
    hook = sys.unraisablehook

    def quieter(unraisable: "UnraisableHookArgs") -> None:
        if not issubclass(unraisable.exc_type, Stopped):  # lost within a destructor; `check_stopped` raises it again
            hook(unraisable)

    with _watched():
        try:
            sys.unraisablehook = quieter
            for number in ours:
                signal.signal(number, _on_signal)
            yield
        except Exception as error:
            if _state.number is not None and not _state.done:  # libraries make errors of their own of a signal
                raise Stopped(_state.number) from error
            raise
        finally:
            for number in ours:  # what is stopped has cleared up: once more ends it at once
                signal.signal(number, before[number] if _state.number is None else signal.SIG_DFL)
            sys.unraisablehook = hook
            _state = _State()
    atexit.unregister(_default_signals)
    atexit.register(_default_signals)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold a signal off until the end of this block, for what must be done to its end. May be nested."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    state = _state
    state.uninterrupted += 1
    try:
        yield
    finally:
        state.uninterrupted -= 1
        _raise_once()


def check_stopped() -> None:
    """Raise `Stopped` where a signal has come: once more, if the code below has swallowed it."""
    if _state.number is not None and threading.current_thread() is threading.main_thread():
        _state.raised = False
        _raise_once()


def past_stopping() -> None:
    """From here on a signal stops nothing: what was asked for is there, and the rest takes a moment."""
    _state.done = True


def _raise_once() -> None:
    if _state.number is not None and not (_state.raised or _state.done or _state.uninterrupted):
        _state.raised = True
        raise Stopped(_state.number)


def _on_signal(number: int, frame: FrameType | None) -> None:
    if _state.number is not None:
        _end(number)
    _state.number = number
    _raise_once()


def _end(number: int) -> None:
    if os.isatty(2):  # a progress bar has hidden it
        os.write(2, _SHOW_CURSOR)
    os._exit(128 + number)


@contextmanager
def _watched() -> Iterator[None]:
    """A thread that reads the signals as they come, whatever the main thread is in."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_watch, args=(reader,), name="signals", daemon=True)
    try:
        thread.start()
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)
        thread.join()
        os.close(reader)


def _watch(reader: int) -> None:
    seen = 0
    while True:
        if seen == 1 and not select.select([reader], [], [], _PATIENCE_S)[0] and not _state.done:
            os.write(2, _SLOW)
        came = os.read(reader, 1)
        if not came:
            return
        if came[0] in SIGNALS:
            seen += 1
            if seen > 1:
                _end(came[0])


def _default_signals() -> None:
    """While Python ends, nothing is left to clear up: a signal ends it without a traceback."""
    for number in SIGNALS:
        if signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, signal.SIG_DFL)
