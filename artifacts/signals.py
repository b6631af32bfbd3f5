"""How Ctrl-C (SIGINT) and SIGTERM stop an offline command.

The first signal raises `Stopped` in the main thread, so that every `with` and `finally` on the way out clears up. The
second ends the process at once. Python runs handlers between its own instructions only: while the main thread is inside
Faiss, PyTorch or Java, a signal takes effect when that call returns.

Files in work directories appear whole or not at all. Before a command puts its result in place, it calls
`commit_point`.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_handled: tuple[signal.Signals, ...] = ()  # while `stoppable` runs, the signals that it handles
_received: int | None = None  # the first of them


class Stopped(KeyboardInterrupt):
    """A signal stopped the command; `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` in this block at the first SIGINT or SIGTERM. The second ends the process.

    An error after a signal counts as its consequence and becomes `Stopped`, because libraries replace exceptions by
    their own. An ignored signal stays ignored, as in the background of a shell script. For the main thread; the block
    must not contain another of its kind.
    """
    global _handled, _received
    before, hook = {number: signal.getsignal(number) for number in SIGNALS}, sys.unraisablehook
    _handled = tuple(number for number in SIGNALS if before[number] is not signal.SIG_IGN)
    try:
        for number in _handled:
            signal.signal(number, _stop)
        sys.unraisablehook = _lost
        yield
    except Exception as error:
        if _received is not None:
            raise Stopped(_received) from error
        raise
    finally:
        for number in _handled if _received is None else ():
            signal.signal(number, before[number] or signal.SIG_DFL)
        _handled, _received, sys.unraisablehook = (), None, hook


def check_stopped() -> None:
    """Raise `Stopped` again where the code below has swallowed it."""
    if _received is not None:
        raise Stopped(_received)


def commit_point() -> None:
    """From here to the end of `stoppable`, ignore both signals: the result takes its place, and the rest is short.
    Raise `Stopped` where the code below has swallowed it."""
    check_stopped()
    for number in _handled:
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> None:
    global _received
    _received = number
    for handled in _handled:
        signal.signal(handled, signal.SIG_DFL)
    raise Stopped(number)


def _lost(unraisable: "UnraisableHookArgs") -> None:
    """Say nothing of `Stopped` where Python can't raise, in a `__del__`, say: `check_stopped` raises it again."""
    if not isinstance(unraisable.exc_value, Stopped):
        sys.__unraisablehook__(unraisable)
