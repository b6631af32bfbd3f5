"""How Sphinx makes a site of the Markdown pages (`make docs`). The pages are written for GitHub as well as for it.

The source is the whole checkout, because pages of docs/ and README.md point at each other. docs/index.md is the start
page, and its lists are the navigation: a page that is in none of them fails the build.
"""

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]

project = "LightRetriever Search"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
html_title = f"{project} {version}"

extensions = ["myst_parser"]
include_patterns = ["docs/**.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
exclude_patterns = [".*", "build", "demo", "runs", "tests", "**/__pycache__"]
root_doc = "docs/index"
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]  # <img …> of README is an image of the site, too
html_theme = "furo"
html_copy_source = False
html_show_copyright = False
# Theme, styles and scripts lie in the site itself; nothing is fetched from elsewhere to read it.
html_theme_options = {"footer_icons": []}


def trees(page: str) -> str:
    """The lists of links below the headings of the start page as hidden tables of contents, one for each heading."""
    found = []
    for caption, section in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", page, flags=re.MULTILINE):
        pages = re.findall(r"^- \[([^\]]*)\]\(([^)#:]*)\.md\)", section, flags=re.MULTILINE)
        found += [tree(f":caption: {caption}", *(f"{title} <{page}>" for title, page in pages))] if pages else []
    return "\n".join(found)


def tree(option: str, *pages: str) -> str:
    """A table of contents that is in the navigation alone."""
    return "\n".join(["", "```{toctree}", ":hidden:", option, "", *pages, "```", ""])


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Called by Sphinx for each page that it reads."""
    if name == root_doc:
        source[0] += trees(source[0])


def add_front_door(app: Sphinx, error: Exception | None) -> None:
    """Called by Sphinx at its end: the site's folder leads to the start page."""
    page = '<!doctype html><meta http-equiv="refresh" content="0; url={0}"><a href="{0}">{1}</a>\n'
    (Path(app.outdir) / "index.html").write_text(page.format(f"{root_doc}.html", project), encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Called by Sphinx at its start."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_front_door)
