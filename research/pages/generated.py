"""Parts of the documentation that scripts write: where they stand in a page, and writing or checking them."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Part", "of_file", "wants_check", "write_or_check"]


@dataclass(frozen=True)
class Part:
    """The part of a Markdown page between two lines."""

    begin: str
    end: str

    def replaced(self, page: str, text: str) -> str:
        """The page with `text` between the two lines. Raises ValueError when one is missing."""
        before, begin, rest = page.partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not (begin and end):
            raise ValueError(f"the page needs the lines {self.begin!r} and {self.end!r}")
        return f"{before}{self.begin}\n{text}{self.end}{after}"


def of_file(make: Callable[[Any, str], list[str]]) -> Callable[[Path], list[str]]:
    """Make a function of a result file out of one of its content and of a link to it. Without the file there are no
    tables."""

    def tables(file: Path) -> list[str]:
        if not file.is_file():
            return []
        return make(json.loads(file.read_text(encoding="utf-8")), f"[{file.name}](results/{file.name})")

    tables.__doc__ = make.__doc__
    return tables


def wants_check(description: str, arguments: list[str] | None) -> bool:
    """Whether the command line asks to check alone."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="change nothing; exit status 1 when out of date")
    return bool(parser.parse_args(arguments).check)


def write_or_check(outputs: Mapping[Path, str], root: Path, script: str, source: str, *, check: bool) -> int:
    """Write every file whose text differs from `outputs`, or name it where `check` is set; returns the exit status.

    `script` is the module that writes them and `source` what they are written from; both are for the message.
    """
    stale = {
        file: text for file, text in outputs.items() if not file.is_file() or file.read_text(encoding="utf-8") != text
    }
    for file, text in stale.items():
        name = file.relative_to(root)
        if check:
            print(f"{name}: differs from {source}; run: python -m {script}", file=sys.stderr)
        else:
            file.write_text(text, encoding="utf-8")
            print(f"{name}: written")
    return int(check and bool(stale))
