"""What offline commands report: progress on stderr, with the time taken and left, and a summary at the end: lines for
people, or one JSON object (docs/commands.md); and the software's version."""

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from lightretriever.artifacts.errors import readable
from lightretriever.artifacts.signals import check_stopped

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


@dataclass
class Summary:
    """The end of a command: the `path` of its result, `lines` for people, `facts` for programs, by the keys of
    docs/commands.md, and the `seconds` that it took."""

    path: str
    lines: list[str]
    facts: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def text(self) -> str:
        """All of it for people."""
        return readable("\n".join([*self.lines, f"took {duration(self.seconds)}"]))

    def json(self, command: str) -> str:
        """The JSON object of a command of this name."""
        return json.dumps({"command": command, "path": self.path, "seconds": self.seconds, **self.facts})


def duration(seconds: float) -> str:
    """A length of time for people: 0.8 s, 42 s, 12 min 5 s, 3 h 20 min."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def encoded_line(reused: int, encoded: int, removed: int) -> str:
    """The line that says how many documents the model read."""
    return f"documents: {reused:,} reused, {encoded:,} encoded, {removed:,} removed"


def left_out(skipped: int, cut: int) -> Iterator[str]:
    """Lines that say what of a corpus was left out, where something was."""
    if skipped:
        yield f"skipped: {skipped:,} bad corpus lines"
    if cut:
        yield f"cut: {cut:,} documents are longer than the model reads; their vectors stand for the beginning alone"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table of rows of as many cells, the first to the left and the others to the right of their columns."""
    first, *others = (max(map(len, cells)) for cells in zip(*rows, strict=True))
    return ["  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]) for row in rows]


def folder_size(folder: Path) -> tuple[int, int]:
    """How many files lie in a folder and below, and their bytes."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return len(sizes), sum(sizes)


def megabytes(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e6:,.1f} MB"


def generator() -> str:
    """Name and version of the software, for `Manifest.generator`."""
    return f"lightretriever-search {package_version('lightretriever-search') or ''}".strip()


def package_version(name: str) -> str | None:
    """Version of a distribution, None where it is not installed, such as this one in a bare checkout."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None
