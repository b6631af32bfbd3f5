"""The summary of a finished stage or command: a few lines for people, or one JSON object (docs/commands.md)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lightretriever.artifacts.errors import readable

__all__ = ["Part", "Summary", "Text", "duration", "encoded_line", "folder_size", "left_out", "megabytes"]


Text = Annotated[str, BeforeValidator(lambda value: readable(value) if isinstance(value, str) else value)]
"""A text with a path or something else in it that need not be UTF-8."""


class Part(BaseModel):
    """A part of a summary."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)


class Summary(Part):
    """Fields of every summary: `path` of the result, `seconds` that it took, and `next`, the command that comes next,
    null where none does."""

    command: str
    path: Text
    seconds: float = Field(default=0.0, ge=0)
    next: Text | None = None

    def made(self) -> Iterator[str]:
        """Lines that say what was made, for people."""
        yield self.path

    def text(self) -> str:
        """All of it for people."""
        lines = [*self.made(), f"took {duration(self.seconds)}"]
        return "\n".join([*lines, f"next: {self.next}"] if self.next else lines)


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


def folder_size(folder: Path) -> tuple[int, int]:
    """How many files lie in a folder and below, and their bytes."""
    sizes = [file.stat().st_size for file in folder.rglob("*") if file.is_file()]
    return len(sizes), sum(sizes)


def megabytes(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e6:,.1f} MB"
