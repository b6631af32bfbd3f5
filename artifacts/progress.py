"""The progress of the offline commands, on stderr: done, time taken, time left."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final, Self, TypeVar

from lightretriever.artifacts.signals import check_stopped
from lightretriever.artifacts.summary import duration

T = TypeVar("T")

LOG_EVERY_S: Final = 10.0
_LIVE_EVERY_S: Final = 0.2


class ProgressBar:
    """Progress of one stage, in `unit`s: in a log a line every ten seconds and at the end; on a terminal one line that
    changes."""

    def __init__(self, stage: str, *, total: int | None, unit: str) -> None:
        self._stage, self._total, self._unit = stage, total, unit
        self._done, self._live = 0, False

    def __enter__(self) -> Self:
        self._live = sys.stderr.isatty()
        self._began = self._shown = time.monotonic()
        return self

    def skip(self, amount: int) -> None:
        """Leave out work that an earlier run had done."""
        if self._total is not None:
            self._total -= amount

    def advance(self, amount: int) -> None:
        """Count finished work. A signal that came and got lost below is raised here."""
        self._done += amount
        if time.monotonic() - self._shown >= (_LIVE_EVERY_S if self._live else LOG_EVERY_S):
            self._show("" if self._live else "\n")
        check_stopped()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self._show("\n")
        elif self._live:
            print(file=sys.stderr)

    def _show(self, end: str) -> None:
        self._shown = time.monotonic()
        took, done, total = self._shown - self._began, self._done, self._total
        line = f"{self._stage}: {done:,}{'' if total is None else f'/{total:,}'} {self._unit}, {duration(took)}"
        if total is not None and 0 < done < total:
            line += f", {duration(took * (total - done) / done)} left"
        print(f"\r\x1b[K{line}" if self._live else line, end=end, file=sys.stderr, flush=True)


def tracked(items: Iterable[T], stage: str, *, total: int | None, unit: str) -> Iterator[T]:
    """The items, with a progress bar while they are consumed."""
    with ProgressBar(stage, total=total, unit=unit) as progress:
        for item in items:
            yield item
            progress.advance(1)
