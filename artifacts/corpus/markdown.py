"""The title of a Markdown file, and the text that is left without it."""

import html
import re
import tomllib
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple

from lightretriever.artifacts.files.reading import parse_yaml

__all__ = ["Heading", "markdown_headings", "markdown_title"]

_HEADING: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(.*)")
_BLANKS: Final = " \t"
_UNDERLINE: Final = re.compile(r" {0,3}(?:=+|-{2,})[ \t]*")
_NO_PARAGRAPH: Final = re.compile(r"[ \t]*(?:[-*+>|#<]|\d+[.)])|    |\t")
_FENCE: Final = re.compile(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})")
_HTML: Final = re.compile(r" {0,3}<h([1-6])\b[^>]*>(.*?)</h\1>", re.DOTALL | re.IGNORECASE)
_HTML_LINES: Final = 20
_TAG: Final = re.compile(r"<[^>]*>")


class Heading(NamedTuple):
    """A heading of a Markdown text: the place of its line's first character, its level from 1 on, and its text."""

    offset: int
    level: int
    text: str


def markdown_headings(text: str) -> list[Heading]:
    """The headings of a text without front matter, in order, of all the kinds that `markdown_title` knows."""
    lines, found = text.split("\n"), list[Heading]()
    offsets = [0, *accumulate(len(line) + 1 for line in lines)]
    for number in _outside_of_fences(lines):
        title, level, _, _ = _heading(lines, number)
        if title:
            found.append(Heading(offsets[number], level, title))
    return found


def markdown_title(content: str) -> tuple[str, str]:
    """Title and text. "" and the text without its front matter where there is no title.

    The title is that of the front matter (YAML or TOML), or else the first heading of the first level, or a heading of
    any level that the text begins with: by #, underlined, or in HTML. Fences and comments hold no headings.
    """
    about, body = _front_matter(content)
    title = about.get("title")
    if title is not None and (found := " ".join(str(title).split())):
        return found, body
    lines = body.split("\n")
    begun = False
    for number in _outside_of_fences(lines):
        title, level, end, rest = _heading(lines, number)
        if title and (level == 1 or not begun):
            return title, "\n".join([*lines[:number], *rest, *lines[end:]])
        begun = begun or bool(lines[number].strip())
    return "", body


def _front_matter(content: str) -> tuple[dict[str, Any], str]:
    """Split a file into its front matter, a mapping, and its text."""
    for mark, parse in (("---", parse_yaml), ("+++", tomllib.loads)):
        begin, _, rest = content.partition("\n")
        end = re.search(rf"^(?:{re.escape(mark)}|\.\.\.)[ \t]*(?:\n|\Z)", rest, re.MULTILINE)
        if begin.rstrip(_BLANKS) == mark and end:
            try:
                about = parse(rest[: end.start()])
            except (ValueError, RecursionError):  # a rule, and text below it
                continue
            if isinstance(about, dict):
                return about, rest[end.end() :]
    return {}, content


def _outside_of_fences(lines: list[str]) -> Iterator[int]:
    """The places of the lines that are neither code in a fence nor in an HTML comment of several lines."""
    fence = ""
    comment = False
    for number, line in enumerate(lines):
        if comment:
            comment = "-->" not in line
        elif fence:
            closing = _FENCE.match(line)
            if closing and closing[1].startswith(fence) and not line[closing.end() :].strip():
                fence = ""
        elif opening := _FENCE.match(line):
            fence = opening[1]
        elif line.lstrip().startswith("<!--"):
            comment = "-->" not in line
        else:
            yield number


def _heading(lines: list[str], number: int) -> tuple[str, int, int, list[str]]:
    """The heading that begins in a line: its text ("" where there is none), its level, where the lines after it begin,
    and what stands behind it in its last line."""
    line = lines[number]
    if found := _HEADING.fullmatch(line):
        return found[2].rstrip(_BLANKS).rstrip("#").rstrip(_BLANKS), len(found[1]), number + 1, []
    below = "".join(lines[number + 1 : number + 2])
    if line.strip() and not _NO_PARAGRAPH.match(line) and _UNDERLINE.fullmatch(below):
        return line.strip(), 1 if "=" in below else 2, number + 2, []
    if line.lstrip(" ")[:2].lower() == "<h" and (found := _HTML.match("\n".join(lines[number : number + _HTML_LINES]))):
        end = number + found[0].count("\n")
        behind = lines[end][len(found[0].rpartition("\n")[2]) :]
        title = " ".join(html.unescape(_TAG.sub(" ", found[2])).split())
        return title, int(found[1]), end + 1, [behind] if behind.strip() else []
    return "", 0, number + 1, []
