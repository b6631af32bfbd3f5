"""Reading the Markdown pages: their links, the anchors of their headings, their fenced blocks."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_MARKDOWN = MarkdownIt("commonmark").enable("table")


class Block(NamedTuple):
    """A fenced block: the language it names, and its text."""

    language: str
    text: str


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tokens(page: Path) -> list[Token]:
    return _MARKDOWN.parse(page.read_text(encoding="utf-8"))


def blocks(page: Path) -> list[Block]:
    return [Block(token.info.strip(), token.content) for token in tokens(page) if token.type == "fence"]


def links(page: Path) -> Iterator[str]:
    """Where links and images lead, those of HTML too."""
    for token in tokens(page):
        for child in [token, *(token.children or ())]:
            if child.type in ("html_block", "html_inline"):
                yield from re.findall(r"""\s(?:href|src)=["']([^"']+)""", child.content)
            target = child.attrGet("href") if child.type == "link_open" else child.attrGet("src")
            if isinstance(target, str):
                yield target


@cache
def anchors(page: Path) -> list[str]:
    """The anchors that GitHub gives the headings."""
    found: list[str] = []
    for heading, content in pairwise(tokens(page)):
        if heading.type == "heading_open":
            text = "".join(child.content for child in content.children or () if child.type in ("text", "code_inline"))
            anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            number = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other) is not None for other in found)
            found.append(f"{anchor}-{number}" if number else anchor)
    return found
