"""The pages: their links lead to files and headings, and they have what the code has: files, commands, recipe keys,
fields, version. Their site, as `make docs` builds it without a network and a warning, needs nothing from elsewhere."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin
from urllib.parse import unquote, urlsplit

import pytest
from pydantic import BaseModel

from lightretriever.artifacts.pipeline.recipe import Recipe
from lightretriever.artifacts.training.recipe import TrainRecipe
from lightretriever.service.cli import COMMANDS
from research.pages import reference
from tests.docs.pages import PAGES, ROOT, anchors, links, page_name

EVERY = sorted({*PAGES, *ROOT.glob("*.md")})


@pytest.mark.parametrize("page", EVERY, ids=page_name)
def test_links_files_and_make_targets_exist(page: Path) -> None:
    """A path in backticks below one of the repository's folders is there, or made by `make demo`."""
    for link in links(page):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
        assert target.exists(), link
        assert not parts.fragment or unquote(parts.fragment) in anchors(target), link
    text = page.read_text("utf-8")
    rooms = "artifacts|service|loadtest|demo|deploy|docs|recipes|research|tests"
    mentioned = re.findall(rf"`((?:{rooms})/[\w./-]+)`", text)
    assert [path for path in mentioned if path != "demo/bundle" and not (ROOT / path).exists()] == []
    known = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(re.findall(r"(?:^|`)(?:PORT=\d+ )?make (\w+)", text, flags=re.MULTILINE)) <= set(known)


def test_the_start_page_leads_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    listed = {(index.parent / link).resolve() for link in links(index)}
    assert set(PAGES) - {index} <= listed


def test_make_alone_lists_every_target() -> None:
    run = subprocess.run(["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert phony is not None
    assert sorted(line.split()[1] for line in run.stdout.splitlines()) == sorted(phony[1].split())


def test_commands_and_options_exist() -> None:
    mentioned = [
        line.split()
        for page in EVERY
        for line in re.findall(r"^(?:\.venv/bin/)?lightretriever (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    ]
    assert mentioned
    for name, *words in mentioned:
        options = {option for parameter in COMMANDS[name].load(name).params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, name


@pytest.mark.parametrize(
    ("model", "sections"),
    [
        (Recipe, [("pipeline.md", "The recipe")]),
        (TrainRecipe, [("training.md", "The recipe"), ("training-data.md", "The keys")]),
    ],
)
def test_every_key_of_a_recipe_is_documented_and_no_other(model: Any, sections: list[tuple[str, str]]) -> None:
    documented = set()
    for page, heading in sections:
        section = (ROOT / "docs" / page).read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        for item in re.findall(r"^- (`[^:\n]*?)(?:: |:?$)", section, flags=re.MULTILINE):
            documented |= set(re.findall(r"`((?:[a-z_0-9]+(?:\[\])?\.)*[a-z_0-9]+)`", re.sub(r"\([^)]*\)", "", item)))
    assert documented == keys_of(model)


def keys_of(model: Any, prefix: str = "") -> set[str]:
    """Keys of a recipe, as the tables have them: `[]` after the name of a list."""
    keys = set()
    for name, field in model.model_fields.items():
        sections = sections_of(field.annotation)
        listed = "[]" if "list[" in str(field.annotation) else ""
        for section in sections:
            keys |= keys_of(section, f"{prefix}{name}{listed}.")
        if not sections or any(get_origin(kind) is Literal for kind in get_args(field.annotation)):  # it may be false
            keys.add(prefix + name)
    return keys


def sections_of(annotation: Any) -> list[type[BaseModel]]:
    """The models that a field's type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in sections_of(part)]


def test_the_version_is_in_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_reference_is_up_to_date() -> None:
    for page, text in reference.outputs(ROOT).items():
        assert page.read_text("utf-8") == text, f"{page} differs from the code: run python -m research.pages.reference"


def test_every_option_has_a_help() -> None:
    for name, listed in COMMANDS.items():
        for parameter in listed.load(name).params:
            assert getattr(parameter, "help", None), f"{name} {parameter.name}"


@pytest.mark.slow
def test_the_site_has_every_page_the_navigation_of_the_start_page_and_nothing_from_elsewhere(tmp_path: Path) -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndocs:")[2]
    (options,) = re.findall(r"-m sphinx (.*) build/docs$", recipe, flags=re.MULTILINE)
    command = [sys.executable, "-m", "sphinx", *options.split(), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for page in PAGES:
        assert (tmp_path / page.relative_to(ROOT)).with_suffix(".html").is_file(), page
    loading = r"""<(?:script|img|link rel=\"(?:stylesheet|preload|icon))[^>]*(?:src|href)="(?:https?:)?//"""
    styling = r"(?:@import|url\()\s*['\"]?(?:https?:)?//"
    for ending, foreign in (("html", loading), ("css", styling)):
        files = list(tmp_path.rglob(f"*.{ending}"))
        assert files
        assert [file for file in files if re.search(foreign, file.read_text(encoding="utf-8"))] == []
    text = (tmp_path / "docs" / "index.html").read_text(encoding="utf-8")
    captions = re.findall(r'<p class="caption"[^>]*><span class="caption-text">(.*?)</span>', text)
    how_to = ["How to prepare documents", "How to search", "How to run the service"]
    assert captions == ["Start here", *how_to, "Reference", "Background", "Laboratory"]
