"""Parts of the documentation that programs write: where they stand in a page, and writing them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """The part of a Markdown page between two lines."""

    begin: str
    end: str

    def replaced(self, page: Path, text: str) -> str:
        """Return the page with `text` between the two lines."""
        before, rest = page.read_text(encoding="utf-8").split(self.begin)
        _, after = rest.split(self.end)
        return f"{before}{self.begin}\n{text}{self.end}{after}"


def write(outputs: Mapping[Path, str]) -> None:
    """Write every file."""
    for file, text in outputs.items():
        file.write_text(text, encoding="utf-8")
