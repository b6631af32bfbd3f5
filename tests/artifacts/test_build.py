"""What `build` looks at before anything is encoded."""

from pathlib import Path

import pytest

from lightretriever.artifacts.errors import BundleError, CorpusError
from lightretriever.artifacts.pipeline.build import check_before_build
from lightretriever.artifacts.pipeline.recipe import Recipe, read_recipe
from tests.support.recipes import write_recipe
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
