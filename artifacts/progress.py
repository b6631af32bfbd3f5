"""The one progress bar of the offline commands: done, time taken, time left; plain lines in a log. All on stderr."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import ClassVar, Final, Self, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from lightretriever.artifacts.signals import check_stopped
from lightretriever.artifacts.summary import duration

__all__ = ["ProgressBar", "tracked"]

T = TypeVar("T")

LOG_EVERY_S: Final = 10.0
"""Without a terminal a plain line is written every so many seconds."""


class ProgressBar:
    """Progress of one stage, in `unit`s. On a terminal a live bar, in a log a line every ten seconds and at the end.

    Bars within bars are shown one below the other.
    """

    _display: ClassVar[Progress | None] = None

    def __init__(self, stage: str, *, total: int | None, unit: str) -> None:
        self._stage, self._total, self._unit = stage, total, unit
        self._outermost = False
        self._logged = 0.0

    def __enter__(self) -> Self:
        self._logged, self._outermost = time.monotonic(), ProgressBar._display is None
        if ProgressBar._display is None:
            ProgressBar._display = _display()
        self._progress = ProgressBar._display
        if self._outermost and not self._progress.disable:
            self._progress.start()
        self._task = self._progress.add_task(self._stage, total=self._total, unit=self._unit)
        return self

    def skip(self, amount: int) -> None:
        """Leave out work that an earlier run had done."""
        if self._total is not None:
            self._total -= amount
            self._progress.update(self._task, total=self._total)

    def advance(self, amount: int) -> None:
        """Count finished work. A signal that came and got lost below is raised here."""
        self._progress.advance(self._task, amount)
        if self._progress.disable and time.monotonic() - self._logged >= LOG_EVERY_S:
            self._log()
        check_stopped()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._outermost:
            self.end_display()
        if self._progress.disable and kind is None:
            self._log()

    @classmethod
    def end_display(cls) -> None:
        """Take the bars off the terminal, and give it its cursor back."""
        display, cls._display = cls._display, None
        if display is not None and not display.disable:
            display.stop()

    def _log(self) -> None:
        self._logged = time.monotonic()
        task = next(task for task in self._progress.tasks if task.id == self._task)
        self._progress.console.print(_line(task), highlight=False, markup=False, soft_wrap=True)


def tracked(items: Iterable[T], stage: str, *, total: int | None, unit: str) -> Iterator[T]:
    """The items, with a progress bar while they are consumed."""
    with ProgressBar(stage, total=total, unit=unit) as progress:
        for item in items:
            yield item
            progress.advance(1)


def _line(task: Task) -> str:
    """A stage for a log."""
    total = "" if task.total is None else f"/{task.total:,.0f}"
    line = f"{task.description}: {task.completed:,.0f}{total} {task.fields['unit']}, {duration(task.elapsed or 0)}"
    left = task.time_remaining
    return line if left is None or task.finished else f"{line}, {duration(left)} left"


def _display() -> Progress:
    """The bars of a terminal; they are not shown elsewhere, where they count alone."""
    stage, unit = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[unit]}")
    columns = stage, BarColumn(bar_width=20), MofNCompleteColumn(), unit, TimeElapsedColumn(), TimeRemainingColumn()
    console, hidden = Console(stderr=True), not sys.stderr.isatty()
    return Progress(*columns, console=console, redirect_stdout=False, disable=hidden)
