"""The title of a Markdown file, and the text that is left without it."""

import html
import re
import tomllib
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple

from markdown_it import MarkdownIt

from lightretriever.artifacts.files.reading import parse_yaml

_BLOCKS: Final = MarkdownIt("commonmark").disable("inline")
_HTML: Final = re.compile(
    r"^ {0,3}<h([1-6])\b[^>]{0,1000}>(.{0,2000}?)</h\1>", re.DOTALL | re.IGNORECASE | re.MULTILINE
)
_TAG: Final = re.compile(r"<[^>]*>")
_BLANKS: Final = " \t"


class Heading(NamedTuple):
    """A heading of a Markdown text: the place of its line's first character, its level from 1 on, and its text."""

    offset: int
    level: int
    text: str


def markdown_headings(text: str) -> list[Heading]:
    """The headings of a text without front matter, in order, of all the kinds that `markdown_title` knows."""
    offsets = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
    return [Heading(offsets[begin], level, title) for begin, _, level, title, _ in _headings(text)]


def markdown_title(content: str) -> tuple[str, str]:
    """Title and text. "" and the text without its front matter where there is no title.

    The title is that of the front matter (YAML or TOML), or else the first heading of the first level, or a heading of
    any level that the text begins with: by #, underlined, or in HTML. Code, lists, quotes and comments hold none.
    """
    fields, body = _front_matter(content)
    title = fields.get("title")
    if title is not None and (front_title := " ".join(str(title).split())):
        return front_title, body
    lines = body.split("\n")
    for begin, end, level, title, rest in _headings(body):
        if level == 1 or not "".join(lines[:begin]).strip():
            return title, "\n".join([*lines[:begin], *rest, *lines[end:]])
    return "", body


def _headings(text: str) -> Iterator[tuple[int, int, int, str, list[str]]]:
    """The headings with a text: the line where each begins, the one after its end, level, text, and the rest of its
    last line."""
    tokens = _BLOCKS.parse(text)
    for number, token in enumerate(tokens):
        begin, end = token.map or (0, 0)
        if token.level == 0 and token.type == "heading_open":
            if title := " ".join(tokens[number + 1].content.split("\n")):
                yield begin, end, int(token.tag[1]), title, []
        elif token.level == 0 and token.type == "html_block" and not token.content.lstrip().startswith("<!--"):
            for match in _HTML.finditer(token.content):
                first = begin + token.content.count("\n", 0, match.start())
                last = begin + token.content.count("\n", 0, match.end())
                behind = token.content[match.end() :].partition("\n")[0]
                title = " ".join(html.unescape(_TAG.sub(" ", match[2])).split())
                if title:
                    yield first, last + 1, int(match[1]), title, [behind] if behind.strip() else []


def _front_matter(content: str) -> tuple[dict[str, Any], str]:
    """Split a file into its front matter, a mapping, and its text."""
    for mark, parse in (("---", parse_yaml), ("+++", tomllib.loads)):
        begin, _, rest = content.partition("\n")
        end = re.search(rf"^(?:{re.escape(mark)}|\.\.\.)[ \t]*(?:\n|\Z)", rest, re.MULTILINE)
        if begin.rstrip(_BLANKS) == mark and end:
            try:
                fields = parse(rest[: end.start()])
            except ValueError:  # a rule, and text below it
                continue
            if isinstance(fields, dict):
                return fields, rest[end.end() :]
    return {}, content
