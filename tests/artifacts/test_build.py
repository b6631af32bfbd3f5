"""What `build` looks at before anything is encoded."""

from pathlib import Path

import pytest
from lightretriever.artifacts.errors import BundleError, CorpusError
from lightretriever.artifacts.pipeline.build import check_before_build
from lightretriever.artifacts.pipeline.recipe import Recipe

from tests.support.models import write_corpus


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "tiny",
            "model": {"path": "none"},
            "corpus": {"path": str(write_corpus(tmp_path / "corpus.jsonl", 3)), "name": "tiny"},
            "tasks": {"web": "Find it"},
            "default_task": "web",
            "work": tmp_path / "work",
            "output": tmp_path / "output",
        }
    )


def test_a_folder_in_the_way_is_replaced_when_it_is_a_bundle(recipe: Recipe) -> None:
    check_before_build(recipe)
    recipe.output.mkdir()
    with pytest.raises(BundleError, match=r"output exists already\. .*pass --overwrite"):
        check_before_build(recipe)
    with pytest.raises(BundleError, match=r"output exists and has no manifest\.json, so it is not overwritten"):
        check_before_build(recipe, overwrite=True)
    (recipe.output / "manifest.json").touch()
    check_before_build(recipe, overwrite=True)


def test_missing_queries_are_found_before_the_model_starts(recipe: Recipe, tmp_path: Path) -> None:
    file = tmp_path / "queries.jsonl"
    asked = recipe.model_copy(update={"index": recipe.index.model_copy(update={"queries": file})})
    with pytest.raises(CorpusError, match=r"queries\.jsonl"):
        check_before_build(asked)
    file.write_text('{"_id":"1","text":"who plays it?"}\n')
    check_before_build(asked)
