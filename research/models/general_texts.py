"""Make a corpus of paragraphs in many languages out of Debian's own texts, for a general token table.

    python -m research.models.general_texts OUTPUT.jsonl.gz PATH [PATH ...]

A PATH is a folder of HTML pages, as the packages debian-handbook and libreoffice-help-LANGUAGE have them, or the
archive's file of translated package descriptions (`Translation-LANGUAGE`, packed by bzip2 or xz, or unpacked). A
paragraph, a list item or a cell of a page is a document, and so is a package's description; texts of fewer than 4
letters are left out, and each text is kept once. Same files, same bytes.
"""

import bz2
import gzip
import io
import json
import lzma
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

from lightretriever.loadtest.program import option, program

__all__ = ["descriptions", "main", "paragraphs"]

_BLOCKS: Final = frozenset(
    ["p", "li", "td", "th", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "h6", "div", "section", "body"]
)
_HIDDEN: Final = frozenset(["script", "style", "head", "nav", "pre", "code"])
_LETTERS: Final = re.compile(r"[^\W\d_]")
_FEWEST_LETTERS: Final = 4


class _Paragraphs(HTMLParser):
    """The texts between the tags of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._text: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in _HIDDEN
        self._at_tag(tag)

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        self._at_tag(tag)

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._text.append(data)

    def _at_tag(self, tag: str) -> None:
        if tag in _BLOCKS:
            self.found.append("".join(self._text))
            self._text = []


def paragraphs(page: str) -> list[str]:
    """The texts of an HTML page's blocks, in order."""
    parser = _Paragraphs()
    parser.feed(page)
    parser.close()
    return parser.found


def descriptions(lines: Sequence[str]) -> Iterator[str]:
    """The translated descriptions in the archive's format: a short line, and paragraphs parted by a line with a dot."""
    text: list[str] = []
    for line in [*lines, ""]:
        if line.startswith("Description-") and not line.startswith("Description-md5"):
            text = [line.partition(":")[2]]
        elif line.startswith(" ") and text:
            text.append("" if line.strip() == "." else line)
        elif text:
            yield " ".join(text)
            text = []


def _texts(path: Path) -> Iterator[str]:
    if path.is_dir():
        for page in sorted(path.rglob("*.html")):
            yield from paragraphs(page.read_text(encoding="utf-8", errors="replace"))
    else:
        unpack = {".bz2": bz2.decompress, ".xz": lzma.decompress}.get(path.suffix, bytes)
        yield from descriptions(unpack(path.read_bytes()).decode("utf-8", errors="replace").splitlines())


@program(option("output", Path), option("paths", Path, nargs="+", metavar="PATH"))
def main(given: Namespace) -> None:
    """Write the corpus."""
    kept: dict[str, None] = {}
    for path in given.paths:
        texts = (" ".join(text.split()) for text in _texts(path))
        kept |= dict.fromkeys(text for text in texts if len(_LETTERS.findall(text)) >= _FEWEST_LETTERS)
    with (
        given.output.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as file,
    ):
        for number, text in enumerate(kept):
            file.write(json.dumps({"_id": f"t{number}", "text": text}, ensure_ascii=False) + "\n")
    print(f"{given.output}: {len(kept):,} texts", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
