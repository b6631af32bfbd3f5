"""The summary of a finished stage or command: a few lines for people, or one JSON object (docs/commands.md)."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightretriever.artifacts.errors import readable


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
