"""`make docs`, without a network: it builds without a warning, such as one of a broken link, and needs nothing from
elsewhere."""

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import PAGES, ROOT

pytestmark = pytest.mark.slow  # `make test` checks the links in the pages themselves


class Page(HTMLParser):
    """What a browser loads with a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "link" and given.get("rel") not in ("index", "search", "next", "prev", "canonical"):
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


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in PAGES:
        assert (site / page.relative_to(ROOT)).with_suffix(".html").is_file(), page


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
