"""`make docs`, without a network: it builds without a warning, its links hold, and it needs nothing from elsewhere."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import PAGES, ROOT

pytestmark = pytest.mark.slow  # `make test` checks the links in the pages themselves


class Page(HTMLParser):
    """The ids of a page, where its links lead, and what a browser loads with it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.loaded.append(given["href"])
        elif "src" in given:
            self.loaded.append(given["src"])


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", *sphinx_options(), "-c", "docs", ".", str(folder)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def sphinx_options() -> list[str]:
    """Those of `make docs`."""
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndocs:")[2].partition("\n\n")[0]
    command = re.search(r"-m sphinx (.*) -c docs \. build/docs$", recipe, flags=re.MULTILINE)
    assert command is not None
    return command[1].split()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(site.rglob("*.html"))}


def test_warnings_are_errors() -> None:
    assert "--fail-on-warning" in sphinx_options()


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in PAGES:
        assert (site / page.relative_to(ROOT)).with_suffix(".html").is_file(), page


def test_links_lead_to_pages_and_anchors(site: Path, pages: dict[Path, Page]) -> None:
    assert list(broken(site, pages)) == []


def broken(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                yield f"{path.relative_to(site)}: {link}"


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    assert pages[site / "docs" / "index.html"].loaded
    for path, page in pages.items():
        for address in page.loaded:
            parts = urlsplit(address)
            assert not parts.netloc, address
            assert parts.scheme == "data" or (path.parent / unquote(parts.path)).is_file(), address
    styles = [style for path in pages for style in path.parent.rglob("*.css")]
    assert [
        style for style in styles if re.search(r"(?:@import|url\()\s*['\"]?(?:https?:)?//", style.read_text())
    ] == []


def test_the_navigation_is_that_of_the_start_page(site: Path, pages: dict[Path, Page]) -> None:
    text = (site / "docs" / "index.html").read_text(encoding="utf-8")
    captions = re.findall(r'<p class="caption"[^>]*><span class="caption-text">(.*?)</span>', text)
    how_to = ["How to prepare documents", "How to search", "How to run the service"]
    assert captions == ["Start here", *how_to, "Reference", "Background", "Laboratory"]
    assert pages[site / "index.html"].links == ["docs/index.html"]
