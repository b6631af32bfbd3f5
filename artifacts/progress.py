"""The one progress bar of the offline commands: done, rate, time left; plain lines in a log."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["ProgressBar"]

#: Without a terminal one plain line is written at most every so many seconds.
LOG_EVERY_S = 30.0


class ProgressBar:
    """Progress of one stage, in `unit`s. On a terminal a live bar, in a log a line every half minute."""

    def __init__(self, stage: str, *, total: int | None, unit: str) -> None:
        self._stage, self._total, self._unit = stage, total, unit
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._done, self._began, self._logged = 0, 0.0, 0.0
        self._skipped = 0

    def __enter__(self) -> Self:
        self._began = self._logged = time.monotonic()
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[amount]}"),
                TextColumn("{task.fields[rate]}"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task(self._stage, total=self._total, amount="", rate="")
        return self

    def skip(self, amount: int) -> None:
        """Count work that an earlier run had done: it moves the bar but not the rate."""
        self._skipped += amount
        self.advance(amount)

    def advance(self, amount: int) -> None:
        """Count finished work."""
        self._done += amount
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, amount=self._amount(), rate=self._rate())
        elif time.monotonic() - self._logged >= LOG_EVERY_S:
            self._logged = time.monotonic()
            self._console.print(self._line(), highlight=False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None:
            self._console.print(self._line(), highlight=False)

    def _rate(self) -> str:
        elapsed = max(time.monotonic() - self._began, 1e-6)
        return f"{(self._done - self._skipped) / elapsed:,.0f} {self._unit}/s"

    def _amount(self) -> str:
        return f"{self._done:,}" + (f"/{self._total:,}" if self._total else "")

    def _line(self) -> str:
        elapsed = time.monotonic() - self._began
        made = self._done - self._skipped
        left = "" if not self._total or made <= 0 else f", {elapsed * (self._total - self._done) / made:.0f} s left"
        return f"{self._stage}: {self._amount()} {self._unit}, {self._rate()}, {elapsed:.0f} s{left}"
