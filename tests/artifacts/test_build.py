"""What `build` looks at before anything is encoded, and what it says of a bundle."""

from pathlib import Path

import pytest

from lightretriever.artifacts.bundle.reader import Bundle
from lightretriever.artifacts.errors import BundleError, CorpusError
from lightretriever.artifacts.pipeline.build import bundle_summary, check_before_build
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from tests.support.recipes import write_recipe
from tests.support.tiny import make_tiny_bundle
from tests.support.wordings import raises


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return read_recipe(write_recipe(tmp_path, {"path": "none"}, documents=3, tasks={"web": "Find it"}), Recipe)


def test_a_folder_in_the_way_is_replaced_when_it_is_a_bundle(recipe: Recipe) -> None:
    check_before_build(recipe)
    recipe.output.mkdir()
    with raises(BundleError):
        check_before_build(recipe)
    with raises(BundleError, naming="manifest.json"):
        check_before_build(recipe, overwrite=True)
    (recipe.output / "manifest.json").touch()
    check_before_build(recipe, overwrite=True)


def test_missing_queries_are_found_before_the_model_starts(recipe: Recipe, tmp_path: Path) -> None:
    file = tmp_path / "queries.jsonl"
    asked = recipe.model_copy(update={"index": recipe.index.model_copy(update={"queries": file})})
    with raises(CorpusError, naming="queries.jsonl"):
        check_before_build(asked)
    file.write_text('{"_id":"1","text":"who plays it?"}\n')
    check_before_build(asked)


def test_a_summary_names_the_terms_of_the_sparse_leg(tiny_bundle: Bundle, tmp_path: Path) -> None:
    words = make_tiny_bundle(tmp_path / "words", vocabulary="words", dense=False)
    for bundle, facts, line in (
        (words, ("words", "english", None), "english words"),
        (tiny_bundle, ("tokens", None, 16), "tokens"),
    ):
        found = bundle_summary(bundle, 0)
        assert tuple(found.facts[name] for name in ("vocabulary", "language", "dimension")) == facts
        assert f"sparse leg: {line}" in found.lines
