"""The one progress bar of the offline commands: done, rate, time left; plain lines in a log. All on stderr."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import ClassVar, Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from lightretriever.artifacts.signals import check_stopped

__all__ = ["ProgressBar", "duration", "reporting", "tracked"]

T = TypeVar("T")

LOG_EVERY_S = 10.0
"""Without a terminal a plain line is written every so many seconds."""


class ProgressBar:
    """Progress of one stage, in `unit`s. On a terminal a live bar, in a log a line every ten seconds and at the end.

    Bars within bars are shown one below the other.
    """

    _display: ClassVar[Progress | None] = None
    _open: ClassVar[list["ProgressBar"]] = []
    _logged: ClassVar[float] = 0.0

    def __init__(self, stage: str, *, total: int | None, unit: str) -> None:
        self._stage, self._total, self._unit = stage, total, unit
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._outermost = False
        self._done, self._began = 0, 0.0
        self._skipped = 0

    def __enter__(self) -> Self:
        self._began = ProgressBar._logged = time.monotonic()
        ProgressBar._open.append(self)
        if sys.stderr.isatty():
            self._outermost = ProgressBar._display is None
            if self._outermost:
                ProgressBar._display = _display(self._console)
            self._bar = ProgressBar._display
        if self._bar is not None:
            if self._outermost:
                self._bar.start()
            self._task = self._bar.add_task(self._stage, total=self._total, amount="", rate="", left="")
        return self

    def skip(self, amount: int) -> None:
        """Count work that an earlier run had done: it moves the bar but not the rate."""
        self._skipped += amount
        self.advance(amount)

    def advance(self, amount: int) -> None:
        """Count finished work. A signal that came and got lost below is raised here."""
        self._done += amount
        if self._bar is not None:
            left = self._left()
            self._bar.update(self._task, completed=self._done, amount=self._amount(), rate=self._rate(), left=left)
        elif time.monotonic() - ProgressBar._logged >= LOG_EVERY_S:
            self._log(self._left())
        check_stopped()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        ProgressBar._open.remove(self)
        if self._outermost:
            self.end_display()
        elif self._bar is None and kind is None:
            self._log()

    @classmethod
    def end_display(cls) -> None:
        """Take the bars off the terminal, and give it its cursor back."""
        display, cls._display = cls._display, None
        if display is not None:
            display.stop()

    @classmethod
    def report(cls, command: str, began: float) -> None:
        """In a log, write a line of the innermost stage, or of the `command`, where none was written for a while."""
        if cls._display is not None or time.monotonic() - max(cls._logged, began) < LOG_EVERY_S:
            return
        if cls._open:
            cls._open[-1]._log(cls._open[-1]._left())
        else:
            cls._logged = time.monotonic()
            line = f"{command}: at work, {duration(time.monotonic() - began)}"
            Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)

    def _log(self, left: str = "") -> None:
        ProgressBar._logged = time.monotonic()
        elapsed = duration(time.monotonic() - self._began)
        parts = [f"{self._stage}: {self._amount()} {self._unit}", self._rate(), elapsed, left]
        self._console.print(", ".join(filter(None, parts)), highlight=False, markup=False, soft_wrap=True)

    def _rate(self) -> str:
        made = self._done - self._skipped
        rate = made / max(time.monotonic() - self._began, 1e-6)
        return "" if made == 0 else f"{rate:,.0f} {self._unit}/s" if rate >= 10 else f"{rate:.2g} {self._unit}/s"

    def _amount(self) -> str:
        return f"{self._done:,}" + (f"/{self._total:,}" if self._total else "")

    def _left(self) -> str:
        made = self._done - self._skipped
        if not self._total or made <= 0 or self._done >= self._total:
            return ""
        return f"{duration((time.monotonic() - self._began) * (self._total - self._done) / made)} left"


def tracked(items: Iterable[T], stage: str, *, total: int | None, unit: str) -> Iterator[T]:
    """The items, with a progress bar while they are consumed."""
    with ProgressBar(stage, total=total, unit=unit) as progress:
        for item in items:
            yield item
            progress.advance(1)


@contextmanager
def reporting(command: str) -> Iterator[None]:
    """Write a line in a log at least every ten seconds of the block, whatever its stages do meanwhile."""
    began, ended = time.monotonic(), Event()

    def report() -> None:
        while not ended.wait(LOG_EVERY_S / 10):
            ProgressBar.report(command, began)

    thread = Thread(target=report, name="progress", daemon=True)
    if not sys.stderr.isatty():
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


def duration(seconds: float) -> str:
    """A length of time for people: 0.8 s, 42 s, 12 min 5 s, 3 h 20 min."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _display(console: Console) -> Progress:
    texts = (TextColumn(f"{{task.fields[{name}]}}") for name in ("amount", "rate"))
    left = TextColumn("{task.fields[left]}")
    bar = BarColumn(bar_width=20)
    columns = (TextColumn("{task.description}", markup=False), bar, *texts, TimeElapsedColumn(), left)
    return Progress(*columns, console=console, redirect_stdout=False)
