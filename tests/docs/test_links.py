"""Every link of the pages that stays in the repository leads to a file, and to a heading that is in it."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, blocks, links, page_name


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("*.md")}), ids=page_name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert broken_links(page) == []


def broken_links(page: Path) -> list[str]:
    found = []
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
        if not target.exists() or (parts.fragment and unquote(parts.fragment) not in anchors(target)):
            found.append(link)
    return found


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    other = tmp_path / "other.md"
    other.write_text("# One `two`: three\n\n## The end\n\n## The end\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md) [b](other.md#one-two-three) [c](#page) [d](other.md#the-end-1) [e](https://example.org)\n"
        "![f](other.md)\n\n| | |\n|---|---|\n| [g](none.md) | [h](other.md#nothing) |\n\n- ![i](no.png) [j](#page-1)\n"
        '\n<img src="no.svg" alt="k">\n\nText <a href="other.md#no">l</a>\n'
    )
    assert anchors(other) == ["one-two-three", "the-end", "the-end-1"]
    assert broken_links(page) == ["none.md", "other.md#nothing", "no.png", "#page-1", "no.svg", "other.md#no"]


def test_the_start_page_leads_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / link).resolve() for link in links(index)}
    assert set(PAGES) - {index} <= listed


def test_blocks_are_read_as_they_stand() -> None:
    found = blocks(ROOT / "docs" / "tutorial.md")
    assert ("sh", "deploy/install/install pipeline\n") in found
    assert {block.language for block in found} == {"sh", "text", "json"}
