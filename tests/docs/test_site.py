"""`make docs`, without a network: it builds without a warning, such as one of a broken link, and needs nothing from
elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

pytestmark = pytest.mark.slow  # `make test` checks the links in the pages themselves


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndocs:")[2]
    (options,) = re.findall(r"-m sphinx (.*) build/docs$", recipe, flags=re.MULTILINE)
    command = [sys.executable, "-m", "sphinx", *options.split(), str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in PAGES:
        assert (site / page.relative_to(ROOT)).with_suffix(".html").is_file(), page


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loading = r"""<(?:script|img|link rel=\"(?:stylesheet|preload|icon))[^>]*(?:src|href)="(?:https?:)?//"""
    styling = r"(?:@import|url\()\s*['\"]?(?:https?:)?//"
    for ending, foreign in (("html", loading), ("css", styling)):
        files = list(site.rglob(f"*.{ending}"))
        assert files
        assert [file for file in files if re.search(foreign, file.read_text(encoding="utf-8"))] == []


def test_the_navigation_is_that_of_the_start_page(site: Path) -> None:
    text = (site / "docs" / "index.html").read_text(encoding="utf-8")
    captions = re.findall(r'<p class="caption"[^>]*><span class="caption-text">(.*?)</span>', text)
    how_to = ["How to prepare documents", "How to search", "How to run the service"]
    assert captions == ["Start here", *how_to, "Reference", "Background", "Laboratory"]
