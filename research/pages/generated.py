"""Parts of the documentation that programs write: where they stand in a page, and writing or checking them."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Part", "wants_check", "write_or_check"]


@dataclass(frozen=True)
class Part:
    """The part of a Markdown page between two lines."""

    begin: str
    end: str

    def replaced(self, page: str, text: str) -> str:
        """Return the page with `text` between the two lines. Raise ValueError when one is missing."""
        before, begin, rest = page.partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not (begin and end):
            raise ValueError(f"the page needs the lines {self.begin!r} and {self.end!r}")
        return f"{before}{self.begin}\n{text}{self.end}{after}"


def wants_check(description: str, arguments: list[str] | None) -> bool:
    """True if the command line asks to check alone."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 when out of date")
    return bool(parser.parse_args(arguments).check)


def write_or_check(outputs: Mapping[Path, str], root: Path, script: str, source: str, *, check: bool) -> int:
    """Write every file whose text differs from `outputs`, or name it where `check` is set; return the exit status.
    `script` is the module that writes them and `source` what they are written from; both are for the message."""
    status = 0
    for file, text in outputs.items():
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        name = file.relative_to(root)
        if check:
            print(f"{name}: differs from {source}; run: python -m {script}", file=sys.stderr)
            status = 1
        else:
            file.write_text(text, encoding="utf-8")
            print(f"{name}: written")
    return status
